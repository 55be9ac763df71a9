#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "system/jobs.h"

// Several models that are updated together or not at all.
namespace weightcast::test {
namespace {

using testing::HasSubstr;

using Ranks = std::map<std::string, uint32_t>;

/// A policy of two trainers and two ranks an engine, and a smaller draft of one and one. Their tensors have
/// the same names.
class CommitGroups : public Job, public testing::TestWithParam<std::string> {
 protected:
  static inline const Ranks kGroup = {{"draft", 1}, {"policy", 2}};

  void SetUp() override {
    settings_["transport"] = GetParam();
    settings_["policy"] = "each";
    StartController();
    for (uint32_t rank = 0; rank < 2; ++rank) Add("policy", rank, Model(300));
    Add("draft", 0, Model(20));
  }
  static std::vector<TensorInfo> Model(int64_t rows) {
    return {{"embed", DType::kF32, {rows, 64}}, {"norm", DType::kF32, {64}}};
  }
  [[nodiscard]] WorkerOptions Of(const std::string& model, uint32_t rank, std::string engine = "") const {
    WorkerOptions options = Options(rank, kGroup.at(model), std::move(engine));
    options.model = model;
    options.commit_group = kGroup;
    return options;
  }
  struct Member {
    std::string model;
    uint32_t rank = 0;
    Weights source;
    Weights live;
    std::unique_ptr<Trainer> trainer{};
    std::unique_ptr<Inference> inference{};
    std::shared_ptr<weightcast::Update> update{};
    Status refusal{};
  };
  void Add(const std::string& model, uint32_t rank, const std::vector<TensorInfo>& tensors) {
    const uint32_t ranks = kGroup.at(model);
    Member& member = members_.emplace_back(Member{.model = model,
                                                  .rank = rank,
                                                  .source = Weights(tensors, Cut::kRows, rank, ranks),
                                                  .live = Weights(tensors, Cut::kColumns, rank, ranks)});
    auto trainer = Trainer::Connect(Of(model, rank));
    ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
    member.trainer = std::move(*trainer);
    ASSERT_TRUE(member.trainer->Register({.shards = member.source.shards()}).ok());
    auto inference = Inference::Connect(Of(model, rank, "e"));
    ASSERT_TRUE(inference.ok()) << inference.status().ToString();
    member.inference = std::move(*inference);
    ASSERT_TRUE(member.inference
                    ->Register({.shards = member.live.shards()},
                               {.landing = LandingMode::kShadow,
                                .on_switch = [&member](const Version&) { return member.refusal; }})
                    .ok());
  }
  void Publish(int64_t number, const std::string& label = {}) {
    for (Member& member : members_) {
      member.source.Fill(number);
      auto update = member.trainer->Publish(number, Hold::kUntilReady, label);
      ASSERT_TRUE(update.ok()) << update.status().ToString();
      member.update = *update;
    }
  }
  /// All ranks wait at once.
  std::vector<Result<Version>> Wait(Version newer_than, double seconds) {
    std::vector<Result<Version>> got(members_.size(), Status(Code::kInternal, "not asked"));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members_.size(); ++i)
      threads.emplace_back([&, i] { got[i] = members_[i].inference->Wait(newer_than, In(seconds)); });
    for (std::thread& thread : threads) thread.join();
    return got;
  }
  void ExpectServed(int64_t number) {
    for (const Member& member : members_) {
      EXPECT_EQ(member.inference->version().number, number) << member.model << " " << member.rank;
      EXPECT_EQ(member.live.Wrong(number), 0) << member.model << " " << member.rank;
    }
  }

  std::deque<Member> members_;
};

TEST_P(CommitGroups, TheirModelsAreServedTogether) {
  for (int64_t number = 1; number <= 3; ++number) {
    Publish(number);
    for (const auto& version : Wait({1, number - 1}, 30))
      ASSERT_TRUE(version.ok()) << version.status().ToString();
    ExpectServed(number);
    for (const Member& member : members_) EXPECT_TRUE(member.update->Wait(In(10)).ok());
  }
  const auto offered = members_.back().inference->Offered(In(10));
  ASSERT_TRUE(offered.ok());
  EXPECT_EQ(*offered, Model(20)) << "each model has its own names";
  EXPECT_THAT(members_.back().inference->Describe(), testing::ElementsAre("embed: shadow", "norm: shadow"));
}

TEST_P(CommitGroups, OneRankThatCannotSwitchKeepsAllFromTheVersion) {
  Publish(1);
  for (const auto& version : Wait({}, 30)) ASSERT_TRUE(version.ok()) << version.status().ToString();
  members_.back().refusal = {Code::kInvalidArgument, "the draft does not fit"};
  Publish(2);
  std::vector<Result<Version>> got = Wait({1, 1}, 5);
  EXPECT_THAT(got.back().status().message(), HasSubstr("the draft does not fit"));
  for (const Member& member : members_) {
    EXPECT_THAT(member.update->Wait(In(10)).status().message(), HasSubstr("the draft does not fit"));
    EXPECT_NE(member.inference->version().number, 2) << member.model << " " << member.rank;
  }
  EXPECT_EQ(members_.back().inference->version().number, 1);
  members_.back().refusal = Status::Ok();
  Publish(3);
  for (const auto& version : Wait({1, 2}, 30)) ASSERT_TRUE(version.ok()) << version.status().ToString();
  ExpectServed(3);
}

TEST_P(CommitGroups, AModelThatDoesNotPublishKeepsAllWaiting) {
  Member& draft = members_.back();
  for (Member& member : members_) {
    if (&member == &draft) continue;
    member.source.Fill(1);
    member.update = *member.trainer->Publish(1);
  }
  for (const auto& version : Wait({}, 1)) EXPECT_EQ(version.status().code(), Code::kTimedOut);
  draft.source.Fill(1);
  draft.update = *draft.trainer->Publish(1);
  for (const auto& version : Wait({}, 30)) ASSERT_TRUE(version.ok()) << version.status().ToString();
  ExpectServed(1);
}

TEST_P(CommitGroups, EachModelHasItsOwnRules) {
  Member& draft = members_.back();
  ASSERT_TRUE(draft.trainer
                  ->Register({.shards = draft.source.shards()},
                             {.rules = {{Rename{.from = "em{*}", .to = "look{*}"}}}})
                  .ok());
  ASSERT_TRUE(draft.inference->Register({.shards = draft.live.shards()}, {.unwanted = {"{**}"}}).ok());
  Publish(1);
  EXPECT_THAT(Wait({}, 5)[0].status().message(), HasSubstr("draft/embed"));
}

TEST_P(CommitGroups, ALabelComesWithTheVersion) {
  Publish(1, "step-80");
  for (const auto& version : Wait({}, 30)) {
    ASSERT_TRUE(version.ok()) << version.status().ToString();
    EXPECT_EQ(version->label, "step-80");
  }
  EXPECT_EQ(members_[0].update->version().label, "step-80");
  EXPECT_EQ(members_[0].trainer->Publish(2, Hold::kUntilReady, std::string(257, 'x')).status().code(),
            Code::kInvalidArgument);
  EXPECT_THAT(members_[0].trainer->Publish(2, Hold::kUntilReady, "a\nb").status().message(),
              HasSubstr("control characters"));
  EXPECT_THAT(members_[0].trainer->Publish(2, Hold::kUntilReady, "\xed\xa0\x80").status().message(),
              HasSubstr("UTF-8"));
}

INSTANTIATE_TEST_SUITE_P(All, CommitGroups, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return transport.param; });

/// Why a trainer of these options is not taken.
std::string Refusal(WorkerOptions options) {
  const auto trainer = Trainer::Connect(std::move(options));
  return trainer.ok() ? "" : trainer.status().message();
}

TEST(CommitGroupOptions, AreRefusedByName) {
  WorkerOptions options;
  options.controller = "127.0.0.1:1";
  options.commit_group = {{"draft", 1}};
  EXPECT_THAT(Refusal(options), HasSubstr("model 'policy' is not in it"));
  options.commit_group = {{"draft", 1}, {"policy", 2}};
  EXPECT_THAT(Refusal(options), HasSubstr("gives model 'policy' 2 ranks, but world_size is 1"));
  options.world_size = 2;
  options.rank = 2;
  EXPECT_THAT(Refusal(options), HasSubstr("rank 2 of model 'policy' is outside 0..1"));
  options.commit_group = {{"a/b", 1}, {"policy", 2}};
  EXPECT_THAT(Refusal(options), HasSubstr("'a/b' cannot be the name"));
  options.commit_group = {{"draft", 0}, {"policy", 2}};
  EXPECT_THAT(Refusal(options), HasSubstr("'draft' has 0 ranks"));
}

TEST(CommitGroupMembers, WithDifferentRanksOrModelsDoNotJoin) {
  struct Fixture : Job {
    using Job::Options;
    using Job::settings_;
    using Job::StartController;
  } job;
  job.settings_["join_timeout"] = "2";
  job.StartController();
  WorkerOptions options = job.Options(0, 1, "e");
  options.commit_group = {{"draft", 1}, {"policy", 1}};
  const auto whole = Inference::Connect(options);
  ASSERT_TRUE(whole.ok());
  options.commit_group = {{"draft", 2}, {"policy", 1}};
  const auto other = Inference::Connect(options);
  EXPECT_THAT(other.status().message(), HasSubstr("world_size")) << other.status().ToString();
  Weights weights({{"x", DType::kF32, {4}}}, Cut::kWhole, 0, 1);
  ASSERT_TRUE((*whole)->Register({.shards = weights.shards()}).ok());
  const auto alone = (*whole)->Wait({}, In(20));
  EXPECT_THAT(alone.status().message(), HasSubstr("draft+policy")) << alone.status().ToString();
}

}  // namespace
}  // namespace weightcast::test
