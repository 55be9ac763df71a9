#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "system/jobs.h"

// Engines that have no memory for a second model: an update comes in groups of tensors.
namespace weightcast::test {
namespace {

using testing::HasSubstr;

/// One rank of an engine: what it computes with, and a bucket in which one group lands after the other.
class BucketRank {
 public:
  explicit BucketRank(size_t groups) : groups_(groups) {
    landing_ = live_.shards();
    std::vector<uint64_t> used(groups);
    for (size_t i = 0; i < landing_.size(); ++i) {
      const size_t group = i % groups;
      groups_[group].push_back(landing_[i].tensor.name);
      landing_[i].memory.address = reinterpret_cast<std::byte*>(used[group]);  // For now an offset.
      used[group] += (landing_[i].memory.length + 63) / 64 * 64;
    }
    bucket_.resize(*std::ranges::max_element(used));
    for (Shard& shard : landing_)
      shard.memory.address = bucket_.data() + reinterpret_cast<uint64_t>(shard.memory.address);
  }
  [[nodiscard]] LandingOptions Options() const {
    return {.landing = LandingMode::kLoader, .groups = groups_};
  }
  Status Register(Inference& inference) { return inference.Register({.shards = landing_}, Options()); }
  /// What the engine does with a group.
  void HandOn(uint32_t group) {
    for (size_t i = group; i < landing_.size(); i += groups_.size())
      std::memcpy(live_.shards()[i].memory.address, landing_[i].memory.address, landing_[i].memory.length);
  }
  /// An update from Begin to Serve; the groups that came.
  Result<std::vector<uint32_t>> Take(Inference& inference, const std::function<void(uint32_t)>& before = {}) {
    std::vector<uint32_t> order;
    WC_RETURN_IF_ERROR(inference.Begin());
    while (true) {
      WC_ASSIGN_OR_RETURN(const ReceivedGroup group, inference.ReceiveGroup(In(30)));
      if (before) before(group.group);
      HandOn(group.group);
      order.push_back(group.group);
      if (group.last) break;
    }
    WC_RETURN_IF_ERROR(inference.Finish(In(30)));
    return order;
  }
  [[nodiscard]] int64_t Wrong(int64_t version) { return live_.Wrong(version); }
  [[nodiscard]] size_t bucket_bytes() const { return bucket_.size(); }
  [[nodiscard]] const std::vector<Shard>& landing() const { return landing_; }

 private:
  std::vector<std::vector<std::string>> groups_;
  Weights live_{SmallModel(DType::kU64), Cut::kWhole, 0, 1};
  std::vector<Shard> landing_;
  std::vector<std::byte> bucket_;
};

class Groups : public Job, public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    settings_["transport"] = GetParam();
    settings_["commit_timeout"] = "10";
    StartController();
    trainer_ = ConnectTrainer();
    ASSERT_TRUE(trainer_);
    ASSERT_TRUE(trainer_->Register({.shards = source_.shards()}).ok());
  }
  std::shared_ptr<weightcast::Update> Publish(int64_t version) {
    source_.Fill(version);
    auto update = trainer_->Publish(version);
    EXPECT_TRUE(update.ok()) << update.status().ToString();
    return *update;
  }

  Weights source_{SmallModel(DType::kU64), Cut::kWhole, 0, 1};
  std::unique_ptr<Trainer> trainer_;
};

TEST_P(Groups, ComeOneAfterTheOtherIntoTheSameMemory) {
  const auto engine = ConnectEngine("e");
  BucketRank rank(4);
  ASSERT_TRUE(rank.Register(*engine).ok());
  const auto other = ConnectEngine("other");  // Takes all at once.
  Weights whole(SmallModel(DType::kU64), Cut::kWhole, 0, 1);
  ASSERT_TRUE(other->Register({.shards = whole.shards()}).ok());
  for (int64_t version = 1; version <= 3; ++version) {
    auto update = Publish(version);
    auto waits =
        std::async(std::launch::async, [&] { return other->Wait(other->version(), In(30)).status(); });
    const auto order = rank.Take(*engine);
    ASSERT_TRUE(order.ok()) << order.status().ToString();
    EXPECT_EQ(*order, (std::vector<uint32_t>{0, 1, 2, 3}));
    EXPECT_EQ(rank.Wrong(version), 0);
    EXPECT_EQ(engine->version().number, version);
    EXPECT_EQ(waits.get().ToString(), "ok");
    EXPECT_EQ(whole.Wrong(version), 0);
    const auto stats = update->Wait(In(10));
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  }
  EXPECT_LT(rank.bucket_bytes(), source_.bytes());
}

TEST_P(Groups, AGroupIsHandedOnWhenEveryRankHasIt) {
  const auto first = ConnectEngine("e", 0, 2);
  const auto second = ConnectEngine("e", 1, 2);
  BucketRank ranks[2] = {BucketRank(3), BucketRank(3)};
  ASSERT_TRUE(ranks[0].Register(*first).ok());
  ASSERT_TRUE(ranks[1].Register(*second).ok());
  auto update = Publish(1);
  ASSERT_TRUE(first->Begin().ok());
  EXPECT_EQ(first->ReceiveGroup(In(0.3)).status().code(), Code::kTimedOut) << "the other has not begun";
  std::promise<void> go_on;
  auto others = std::async(std::launch::async, [&, may = go_on.get_future()]() mutable {
    return ranks[1].Take(*second, [&](uint32_t group) {
      if (group == 0) may.wait();
    });
  });
  const auto came = first->ReceiveGroup(In(30));
  ASSERT_TRUE(came.ok()) << came.status().ToString();
  EXPECT_EQ(came->group, 0U);
  ranks[0].HandOn(0);
  EXPECT_EQ(first->ReceiveGroup(In(0.2)).status().code(), Code::kTimedOut) << "the other hands on still";
  go_on.set_value();
  for (uint32_t group = 1; group < 3; ++group) {
    const auto next = first->ReceiveGroup(In(30));
    ASSERT_TRUE(next.ok()) << next.status().ToString();
    EXPECT_EQ(next->group, group);
    EXPECT_EQ(next->last, group == 2);
    ranks[0].HandOn(group);
  }
  EXPECT_TRUE(first->Finish(In(30)).ok());
  EXPECT_EQ(others.get().status().ToString(), "ok");
  EXPECT_TRUE(update->Wait(In(10)).ok());
  for (BucketRank& rank : ranks) EXPECT_EQ(rank.Wrong(1), 0);
}

TEST_P(Groups, AnUpdateThatEndsBetweenTwoGroupsLeavesNoVersion) {
  const auto engine = ConnectEngine("e");
  BucketRank rank(3);
  ASSERT_TRUE(rank.Register(*engine).ok());
  auto update = Publish(1);
  ASSERT_TRUE(rank.Take(*engine).ok());
  ASSERT_TRUE(update->Wait(In(10)).ok());

  // The engine gives up.
  update = Publish(2);
  ASSERT_TRUE(engine->Begin().ok());
  ASSERT_TRUE(engine->ReceiveGroup(In(30)).ok());
  ASSERT_TRUE(engine->Abort().ok());
  EXPECT_EQ(engine->state(), EngineState::kFailed);
  EXPECT_EQ(engine->version().number, -1);
  EXPECT_FALSE(update->Wait(In(10)).ok());

  // The trainer does.
  update = Publish(3);
  ASSERT_TRUE(engine->Begin().ok());
  ASSERT_TRUE(engine->ReceiveGroup(In(30)).ok());
  update->Cancel();
  EXPECT_FALSE(update->Wait(In(10)).ok());  // Until then a further group may land.
  EXPECT_FALSE(engine->ReceiveGroup(In(30)).ok());
  ASSERT_TRUE(engine->Abort().ok());
  EXPECT_EQ(engine->state(), EngineState::kFailed);

  // The trainer dies, and another one comes.
  update = Publish(4);
  ASSERT_TRUE(engine->Begin().ok());
  ASSERT_TRUE(engine->ReceiveGroup(In(30)).ok());
  trainer_->Close();
  EXPECT_FALSE(engine->ReceiveGroup(In(30)).ok());
  ASSERT_TRUE(engine->Abort().ok());
  trainer_ = ConnectTrainer();
  ASSERT_TRUE(trainer_->Register({.shards = source_.shards()}).ok());
  update = Publish(5);
  auto order = rank.Take(*engine);
  if (order.status().message().ends_with("trainer 0 has left; start it again to go on")) {
    // It was aborted because the connection had ended: that the trainer has left was not told yet.
    ASSERT_TRUE(engine->Abort().ok());
    order = rank.Take(*engine);
  }
  ASSERT_TRUE(order.ok()) << order.status().ToString();
  EXPECT_EQ(rank.Wrong(5), 0);
  EXPECT_TRUE(update->Wait(In(10)).ok());
}

TEST_P(Groups, AnEngineThatNeverHandsOnIsOutByName) {
  settings_["commit_timeout"] = "1";
  StartController();
  trainer_ = ConnectTrainer();
  ASSERT_TRUE(trainer_->Register({.shards = source_.shards()}).ok());
  const auto engine = ConnectEngine("slow");
  BucketRank rank(3);
  ASSERT_TRUE(rank.Register(*engine).ok());
  auto update = Publish(1);
  ASSERT_TRUE(engine->Begin().ok());
  ASSERT_TRUE(engine->ReceiveGroup(In(30)).ok());
  const Status outcome = update->Wait(In(30)).status();
  EXPECT_THAT(outcome.message(), HasSubstr("engine slow rank 0 has not handed on the last group"));
  EXPECT_THAT(engine->ReceiveGroup(In(30)).status().message(), HasSubstr("has not handed on the last group"));
}

TEST_P(Groups, AnEngineThatComesLateIsFilledGroupByGroup) {
  const auto first = ConnectEngine("first");
  Weights whole(SmallModel(DType::kU64), Cut::kWhole, 0, 1);
  ASSERT_TRUE(first->Register({.shards = whole.shards()}).ok());
  auto update = Publish(1);
  ASSERT_TRUE(first->Wait({}, In(30)).ok());
  ASSERT_TRUE(update->Wait(In(10)).ok());
  trainer_->Close();
  const auto late = ConnectEngine("late");
  BucketRank rank(3);
  ASSERT_TRUE(rank.Register(*late).ok());
  const auto order = rank.Take(*late);
  ASSERT_TRUE(order.ok()) << order.status().ToString();
  EXPECT_EQ(rank.Wrong(1), 0);
}

TEST_P(Groups, WhatCannotBeIsRefused) {
  const auto engine = ConnectEngine("e", 0, 2);
  BucketRank rank(3);
  const auto refusal = [&](auto change) {
    LandingOptions options = rank.Options();
    change(options);
    return std::string(engine->Register({.shards = rank.landing()}, options).message());
  };
  const std::string some = rank.landing()[0].tensor.name;
  EXPECT_THAT(refusal([](auto& options) { options.groups.pop_back(); }), HasSubstr("is in no group"));
  EXPECT_THAT(refusal([&](auto& options) { options.groups[1].push_back(some); }),
              HasSubstr("tensor " + some + " is in groups 0 and 1"));
  EXPECT_THAT(refusal([](auto& options) { options.groups.push_back({"nothing"}); }),
              HasSubstr("group 3 names no tensor"));
  EXPECT_THAT(refusal([](auto& options) { options.groups[0] = {"{*"}; }), HasSubstr("groups '{*'"));
  EXPECT_THAT(refusal([](auto& options) { options.landing = LandingMode::kShadow; }),
              HasSubstr("landing 'shadow', a spare copy"));
  EXPECT_THAT(refusal([](auto& options) { options.on_switch = [](const Version&) { return Status::Ok(); }; }),
              HasSubstr("on_switch cannot be used with groups"));
  ASSERT_TRUE(rank.Register(*engine).ok());
  EXPECT_THAT(engine->Wait({}, In(1)).status().message(), HasSubstr("wait cannot receive in 3 groups"));
  EXPECT_THAT(engine->Receive(In(1)).status().message(), HasSubstr("call receive_group for each"));
  EXPECT_FALSE(engine->Digest().ok());

  const auto other = ConnectEngine("e", 1, 2);
  BucketRank four(4);
  ASSERT_TRUE(four.Register(*other).ok());
  ASSERT_TRUE(engine->Begin().ok());
  EXPECT_THAT(engine->ReceiveGroup(In(30)).status().message(),
              HasSubstr(" rank 1 registered 4 groups of tensors, but rank 0 registered 3"));
}

INSTANTIATE_TEST_SUITE_P(All, Groups, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return transport.param; });

}  // namespace
}  // namespace weightcast::test
