#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <tuple>
#include <vector>

#include "system/jobs.h"

// The setting `compare`: an update whose bytes are not those of its sources is not served.
namespace weightcast::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 64;
constexpr int64_t kColumns = 64 * 1024;

/// Two tensors of 16 MiB, several transfers each.
struct Pair {
  std::vector<uint32_t> steady = std::vector<uint32_t>(kRows * kColumns);
  std::vector<uint32_t> moving = std::vector<uint32_t>(kRows * kColumns);

  [[nodiscard]] std::vector<Shard> shards() {
    const auto shard = [](const char* name, std::vector<uint32_t>& values) {
      return Shard{.tensor = {.name = name, .dtype = DType::kF32, .shape = {kRows, kColumns}},
                   .part = WholeOf({kRows, kColumns}),
                   .memory = HostMemory(std::as_writable_bytes(std::span(values)))};
    };
    return {shard("steady", steady), shard("moving", moving)};
  }
  void Fill(uint32_t version) {
    std::ranges::fill(steady, version);
    std::ranges::fill(moving, version);
  }
  [[nodiscard]] bool Holds(uint32_t version) const {
    const auto is = [version](uint32_t value) { return value == version; };
    return std::ranges::all_of(steady, is) && std::ranges::all_of(moving, is);
  }
};

class Compare : public Job, public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    settings_["transport"] = GetParam();
    settings_["compare"] = "1";
    StartController();
    trainer_ = ConnectTrainer();
    ASSERT_TRUE(trainer_);
    ASSERT_TRUE(trainer_->Register({.shards = source_.shards()}).ok());
  }
  std::shared_ptr<weightcast::Update> Publish(uint32_t version, Hold hold = Hold::kUntilReady) {
    source_.Fill(version);
    auto update = trainer_->Publish(version, hold);
    EXPECT_TRUE(update.ok()) << update.status().ToString();
    return *update;
  }

  Pair source_;
  Pair sink_;
  std::unique_ptr<Trainer> trainer_;
};

TEST_P(Compare, ASourceThatChangesIsFoundByName) {
  auto engine = ConnectEngine("e");
  ASSERT_TRUE(engine);
  ASSERT_TRUE(engine->Register({.shards = sink_.shards()}, {.landing = LandingMode::kShadow}).ok());
  auto first = Publish(1);
  ASSERT_TRUE(engine->Wait({}, In(60)).ok());
  auto stats = first->Wait(In(60));
  ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  EXPECT_EQ(stats->receivers.at(0).compared, 2U);

  std::atomic<bool> over{false};
  std::thread changing([&] {
    for (uint32_t value = 0; !over; ++value)
      for (uint32_t& one : source_.moving) std::atomic_ref(one).store(value, std::memory_order_relaxed);
  });
  std::thread engine_thread([&] {
    while (!over) std::ignore = engine->Wait(engine->version(), In(0.2));
  });
  // It may be sent while the thread that changes it has no processor.
  Status outcome;
  int64_t number = 1;
  while (outcome.ok() && number < 100) outcome = (*trainer_->Publish(++number))->Wait(In(60)).status();
  over = true;
  changing.join();
  engine_thread.join();
  EXPECT_EQ(outcome.code(), Code::kCorrupt) << outcome.ToString();
  EXPECT_THAT(outcome.message(), HasSubstr("tensor moving at this rank is not what trainer 0"));
  EXPECT_THAT(outcome.message(), HasSubstr("1 of 2 tensors"));
  EXPECT_EQ(engine->version().number, number - 1);

  auto last = Publish(static_cast<uint32_t>(number + 1));
  auto version = engine->Wait(engine->version(), In(60));
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(version->number, number + 1);
  EXPECT_TRUE(sink_.Holds(static_cast<uint32_t>(number + 1)));
  EXPECT_TRUE(last->Wait(In(60)).ok());
}

TEST_P(Compare, AnEngineThatIsFilledByAnotherCompares) {
  auto first = ConnectEngine("first");
  ASSERT_TRUE(first);
  ASSERT_TRUE(first->Register({.shards = sink_.shards()}, {.landing = LandingMode::kInPlace}).ok());
  auto update = Publish(1, Hold::kUntilNext);
  ASSERT_TRUE(first->Wait({}, In(60)).ok());
  ASSERT_TRUE(update->Wait(In(60)).ok());

  Pair late;
  auto second = ConnectEngine("second");
  ASSERT_TRUE(second);
  ASSERT_TRUE(second->Register({.shards = late.shards()}, {.landing = LandingMode::kInPlace}).ok());
  auto version = second->Wait({}, In(60));
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(version->number, 1);
  EXPECT_TRUE(late.Holds(1));
}

TEST_P(Compare, GroupsOfTensorsAreComparedOneByOne) {
  auto engine = ConnectEngine("e");
  ASSERT_TRUE(engine);
  LandingOptions options{.landing = LandingMode::kLoader};
  options.groups = {{"steady"}, {"moving"}};
  ASSERT_TRUE(engine->Register({.shards = sink_.shards()}, options).ok());
  auto update = Publish(1);
  ASSERT_TRUE(engine->Begin().ok());
  for (bool last = false; !last;) {
    auto group = engine->ReceiveGroup(In(60));
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    last = group->last;
  }
  ASSERT_TRUE(engine->Finish(In(60)).ok());
  auto stats = update->Wait(In(60));
  ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  EXPECT_EQ(stats->receivers.at(0).compared, 2U);
  EXPECT_TRUE(sink_.Holds(1));
}

INSTANTIATE_TEST_SUITE_P(All, Compare, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace weightcast::test
