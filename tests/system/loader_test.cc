#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "system/jobs.h"

// What engines need that hold their tensors otherwise than trainers do.
namespace weightcast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A trainer, and an engine of one rank that has memory of a loader and copies from it when it switches.
class LoaderLanding : public Job, public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    settings_["transport"] = GetParam();
    StartController();
    trainer_ = ConnectTrainer();
    engine_ = ConnectEngine("e");
    ASSERT_TRUE(trainer_ && engine_);
    ASSERT_TRUE(trainer_->Register({.shards = source_.shards()}).ok());
  }
  std::shared_ptr<weightcast::Update> Publish(int64_t version) {
    source_.Fill(version);
    auto update = trainer_->Publish(version);
    EXPECT_TRUE(update.ok()) << update.status().ToString();
    return *update;
  }
  /// What an engine's loader does.
  Status Load(const Version& version) {
    if (!refusal_.ok()) return refusal_;
    live_ = version.number;
    for (size_t i = 0; i < landing_.shards().size(); ++i) {
      const Memory from = landing_.shards()[i].memory;
      std::memcpy(engines_.shards()[i].memory.address, from.address, from.length);
    }
    return Status::Ok();
  }
  [[nodiscard]] LandingOptions Loader() {
    return {.landing = LandingMode::kLoader,
            .on_switch = [this](const Version& version) { return Load(version); }};
  }

  Weights source_{SmallModel(DType::kU64), Cut::kWhole, 0, 1};
  Weights landing_{SmallModel(DType::kU64), Cut::kWhole, 0, 1};
  Weights engines_{SmallModel(DType::kU64), Cut::kWhole, 0, 1};  ///< What the engine computes with.
  Status refusal_;
  int64_t live_ = -1;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Inference> engine_;
};

TEST_P(LoaderLanding, TheEngineSwitchesAtCommit) {
  ASSERT_TRUE(engine_->Register({.shards = landing_.shards()}, Loader()).ok());
  for (int64_t number = 1; number <= 3; ++number) {
    auto update = Publish(number);
    EXPECT_TRUE(update->WaitSources(In(30)).ok()) << "bytes land while the engine serves";
    EXPECT_EQ(engine_->version().number, number == 1 ? -1 : number - 1);
    EXPECT_EQ(live_, number == 1 ? -1 : number - 1);
    const auto served = engine_->Wait(engine_->version(), In(30));
    ASSERT_TRUE(served.ok()) << served.status().ToString();
    EXPECT_EQ(live_, number);
    EXPECT_EQ(engines_.Wrong(number), 0);
    EXPECT_TRUE(update->Wait(In(10)).ok());
  }
  EXPECT_THAT(engine_->Describe(), testing::Contains("scale: loader"));
}

TEST_P(LoaderLanding, AnAbortAtAnyPhaseBeforeTheSwitchLeavesTheOldVersion) {
  ASSERT_TRUE(engine_->Register({.shards = landing_.shards()}, Loader()).ok());
  auto first = Publish(1);
  ASSERT_TRUE(engine_->Wait({}, In(30)).ok());
  ASSERT_TRUE(first->Wait(In(10)).ok());
  const auto serves = [&](int64_t number, const char* when) {
    EXPECT_EQ(engine_->version().number, number) << when;
    EXPECT_EQ(engines_.Wrong(number), 0) << when;
  };
  int64_t served = 1;
  int64_t number = 1;
  Status outcome;
  do {
    auto cancelled = Publish(++number);
    cancelled->Cancel();
    outcome = cancelled->Wait(In(1)).status();
    if (outcome.code() == Code::kCancelled) break;
    // It had been told to commit before it was cancelled: the engine takes it.
    ASSERT_TRUE(engine_->Wait(engine_->version(), In(30)).ok());
    served = number;
  } while (number < 20);
  EXPECT_EQ(outcome.code(), Code::kCancelled) << outcome.ToString();
  serves(served, "cancelled by the trainer");

  auto third = Publish(++number);
  ASSERT_TRUE(third->WaitSources(In(30)).ok());
  ASSERT_TRUE(engine_->Begin().ok());
  ASSERT_TRUE(engine_->Abort().ok());
  serves(served, "given up between Begin and Receive");
  ASSERT_TRUE(engine_->Wait(engine_->version(), In(30)).ok()) << "its bytes are there still";
  ASSERT_TRUE(third->Wait(In(10)).ok());
  serves(number, "and taken up again");
  served = number;

  refusal_ = {Code::kInvalidArgument, "no such layer"};
  auto refused = Publish(++number);
  ASSERT_TRUE(engine_->Begin().ok());
  const auto received = engine_->Receive(In(30));
  EXPECT_THAT(received.status().message(), HasSubstr("engine e rank 0 could not switch: no such layer"));
  ASSERT_TRUE(engine_->Abort().ok());
  EXPECT_THAT(refused->Wait(In(10)).status().message(), HasSubstr("no such layer"));
  serves(served, "refused by the engine");
  EXPECT_EQ(engine_->state(), EngineState::kServing);

  refusal_ = Status::Ok();
  auto last = Publish(++number);
  const auto taken = engine_->Wait(engine_->version(), In(30));
  ASSERT_TRUE(taken.ok()) << taken.status().ToString();
  serves(number, "in the end");
  EXPECT_TRUE(last->Wait(In(10)).ok());
}

TEST_P(LoaderLanding, WithoutACallReceiveIsTheWord) {
  ASSERT_TRUE(engine_->Register({.shards = landing_.shards()}, {.landing = LandingMode::kLoader}).ok());
  EXPECT_EQ(engine_->Wait({}, In(1)).status().code(), Code::kInvalidArgument);
  auto update = Publish(1);
  ASSERT_TRUE(engine_->Begin().ok());
  const auto received = engine_->Receive(In(30));
  ASSERT_TRUE(received.ok()) << received.status().ToString();
  ASSERT_TRUE(Load(*received).ok());
  ASSERT_TRUE(engine_->Commit().ok());
  ASSERT_TRUE(engine_->Served(In(10)).ok());
  EXPECT_EQ(engine_->version().number, 1);
  EXPECT_EQ(engines_.Wrong(1), 0);
  EXPECT_TRUE(update->Wait(In(10)).ok());
}

TEST_P(LoaderLanding, EachTensorLandsAsItsShardSays) {
  std::vector<Shard> shards = landing_.shards();
  shards[0].landing = LandingMode::kLoader;
  shards[1].landing = LandingMode::kInPlace;
  bool called_before_the_copy = false;
  const size_t last = shards.size() - 1;
  landing_.Fill(0);
  const auto bytes = [&](size_t shard) {
    return std::string(reinterpret_cast<const char*>(shards[shard].memory.address),
                       shards[shard].memory.length);
  };
  const std::string before = bytes(last);
  const LandingOptions options{.landing = LandingMode::kShadow, .on_switch = [&](const Version&) {
                                 called_before_the_copy = bytes(last) == before;
                                 return Status::Ok();
                               }};
  ASSERT_TRUE(engine_->Register({.shards = shards}, options).ok());
  const std::vector<std::string> described = engine_->Describe();
  EXPECT_EQ(described[0], "embed.weight: loader");
  EXPECT_EQ(described[1], "layer.0.norm: in_place");
  EXPECT_EQ(described[last], "head.weight: shadow");
  auto update = Publish(1);
  const auto served = engine_->Wait({}, In(30));
  ASSERT_TRUE(served.ok()) << served.status().ToString();
  EXPECT_TRUE(called_before_the_copy);
  EXPECT_EQ(landing_.Wrong(1), 0);
  EXPECT_TRUE(update->Wait(In(10)).ok());
}

TEST_P(LoaderLanding, AnotherEngineIsFilledFromWhereItLanded) {
  ASSERT_TRUE(engine_->Register({.shards = landing_.shards()}, Loader()).ok());
  auto update = Publish(1);
  ASSERT_TRUE(engine_->Wait({}, In(30)).ok());
  ASSERT_TRUE(update->Wait(In(10)).ok());
  trainer_->Close();
  const auto late = ConnectEngine("late");
  Weights filled(SmallModel(DType::kU64), Cut::kWhole, 0, 1);
  ASSERT_TRUE(late->Register({.shards = filled.shards()}).ok());
  const auto served = late->Wait({}, In(30));
  ASSERT_TRUE(served.ok()) << served.status().ToString();
  EXPECT_EQ(filled.Wrong(1), 0);
}

TEST_P(LoaderLanding, SleepsAndWakes) {
  ASSERT_TRUE(engine_->Register({.shards = landing_.shards()}, Loader()).ok());
  auto update = Publish(1);
  ASSERT_TRUE(engine_->Wait({}, In(30)).ok());
  ASSERT_TRUE(update->Wait(In(10)).ok());
  ASSERT_TRUE(engine_->Suspend(In(10)).ok());
  ASSERT_TRUE(engine_->Resume(Contents::kIntact).ok());
  EXPECT_EQ(engine_->version().number, 1);
  update = Publish(2);
  ASSERT_TRUE(engine_->Wait({1, 1}, In(30)).ok());
  EXPECT_EQ(engines_.Wrong(2), 0) << "the switch is called after a sleep too";
}

INSTANTIATE_TEST_SUITE_P(All, LoaderLanding, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return transport.param; });

/// Trainers that hold `names`, each a vector of four floats.
class Offers : public Job, public testing::Test {
 protected:
  std::vector<Shard> Named(const std::vector<std::string>& names) {
    std::vector<Shard> shards;
    for (const std::string& name : names) {
      memory_.emplace_back(16);
      shards.push_back(
          {.tensor = {name, DType::kF32, {4}}, .part = WholeOf({4}), .memory = HostMemory(memory_.back())});
    }
    return shards;
  }
  /// "" or why the engine, which is to be filled with `names`, cannot be.
  std::string Refusal(Inference& engine, const std::vector<std::string>& names, LandingOptions options) {
    if (Status status = engine.Register({.shards = Named(names)}, std::move(options)); !status.ok())
      return status.message();
    const auto served = engine.Wait({}, In(20));
    return served.ok() ? "" : served.status().message();
  }

 private:
  std::list<std::vector<std::byte>> memory_;
};

TEST_F(Offers, AreWhatAllTrainersHave) {
  StartController();
  const auto engine = ConnectEngine("e");
  EXPECT_EQ(engine->Offered(In(0.2)).status().code(), Code::kTimedOut);
  const auto first = ConnectTrainer(0, 2);
  std::optional<Result<std::vector<TensorInfo>>> offered;
  std::thread asker([&] { offered = engine->Offered(In(30)); });
  std::vector<Shard> shards = Named({"b", "a", "step"});
  shards[2].declared = true;
  ASSERT_TRUE(first->Register({.shards = shards}).ok());
  EXPECT_EQ(engine->state(), EngineState::kJoining);
  const auto second = ConnectTrainer(1, 2);
  ASSERT_TRUE(second->Register({.shards = Named({"c", "a"})}).ok());
  asker.join();
  ASSERT_TRUE(offered->ok()) << offered->status().ToString();
  const auto vector = [](const char* name) { return TensorInfo{name, DType::kF32, {4}}; };
  EXPECT_THAT(**offered, ElementsAre(vector("a"), vector("b"), vector("c")));
}

TEST_F(Offers, EndWithTheSession) {
  StartController();
  const auto engine = ConnectEngine("e");
  std::optional<Result<std::vector<TensorInfo>>> offered;
  std::thread asker([&] { offered = engine->Offered(In(30)); });
  engine->Close();
  asker.join();
  EXPECT_EQ(offered->status().code(), Code::kCancelled) << offered->status().ToString();
}

TEST_F(Offers, WhatAnEngineDoesNotTakeItSays) {
  settings_["min_engines"] = "1";
  StartController();
  const auto trainer = ConnectTrainer();
  ASSERT_TRUE(trainer->Register({.shards = Named({"a", "b", "draft.x", "draft.y"})}).ok());
  ASSERT_TRUE(trainer->Publish(1, Hold::kUntilNext).ok());
  EXPECT_EQ(Refusal(*ConnectEngine("all"), {"a", "b", "draft.x", "draft.y"}, {}), "");
  EXPECT_EQ(Refusal(*ConnectEngine("some"), {"a", "b"}, {.unwanted = {"draft.{**}"}}), "");
  EXPECT_EQ(Refusal(*ConnectEngine("one"), {"a"}, {.unwanted = {"{**}"}}), "");
  const std::string forgot = Refusal(*ConnectEngine("forgot"), {"a", "b"}, {.unwanted = {"draft.x"}});
  EXPECT_THAT(forgot, HasSubstr("engine forgot"));
  EXPECT_THAT(forgot, HasSubstr("'draft.y'"));
  EXPECT_THAT(forgot, testing::Not(HasSubstr("'draft.x'")));
  EXPECT_THAT(Refusal(*ConnectEngine("bad"), {"a"}, {.unwanted = {"a{b"}}), HasSubstr("unwanted 'a{b'"));
}

TEST_F(Offers, WhatNobodySendsAnEngineDeclares) {
  settings_["min_engines"] = "1";
  StartController();
  const auto trainer = ConnectTrainer();
  ASSERT_TRUE(trainer->Register({.shards = Named({"a"})}).ok());
  ASSERT_TRUE(trainer->Publish(1, Hold::kUntilNext).ok());
  EXPECT_EQ(Refusal(*ConnectEngine("e"), {"a", "rope.inv_freq"}, {.not_sent = {"{**}.inv_freq"}}), "");
  EXPECT_THAT(Refusal(*ConnectEngine("f"), {"a"}, {.not_sent = {"{**}.inv_freq"}}),
              HasSubstr("is the name of no tensor that this rank registers"));
  EXPECT_THAT(Refusal(*ConnectEngine("g"), {"a", "rope.inv_freq"}, {}), HasSubstr("'rope.inv_freq'"));
}

}  // namespace
}  // namespace weightcast::test
