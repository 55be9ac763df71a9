#include "worker/comparison.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "unit/worker/planned.h"
#include "worker/batches.h"

namespace weightcast::worker {
namespace {

constexpr int64_t kRows = 4096;
constexpr int64_t kColumns = 1024;

std::vector<Shard> Holding(const Box& box) {
  std::vector<Shard> shards;
  for (const char* name : {"a", "b"})
    shards.push_back(
        {.tensor = {.name = name, .dtype = DType::kF32, .shape = {kRows, kColumns}}, .part = box});
  return shards;
}
Box Rows(int64_t first, int64_t count) { return {.offset = {first, 0}, .size = {count, kColumns}}; }

/// One trainer, and ranks of engines.
struct OneTrainer {
  explicit OneTrainer(const std::vector<std::vector<Shard>>& ranks) {
    const Planned planned({Holding(Rows(0, kRows))}, ranks);
    table = plan::DecodeRankTable(planned.For(plan::RankTable::Role::kTrainer, 0)).value();
    batches = CutIntoBatches(table);
  }
  [[nodiscard]] TransferRange All(size_t target) const {
    return {.first = 0, .end = batches[target].transfers()};
  }
  [[nodiscard]] bool Equal(size_t a, size_t b) const {
    return PairDigests::Equal(table, batches[a], All(a), batches[b], All(b));
  }

  plan::RankTable table;
  std::vector<Batches> batches;
};

TEST(PairDigests, EnginesOfEqualLayoutGetTheSame) {
  const auto upper = Holding(Rows(0, kRows / 2));
  const auto lower = Holding(Rows(kRows / 2, kRows / 2));
  const OneTrainer trainer({upper, lower, upper, lower});
  ASSERT_EQ(trainer.batches.size(), 4U);
  EXPECT_TRUE(trainer.Equal(0, 2));
  EXPECT_TRUE(trainer.Equal(1, 3));
  EXPECT_FALSE(trainer.Equal(0, 1));
  auto cast = trainer;
  for (auto& route : cast.table.routes)
    if (route.peer == 2) route.transform = plan::Transform::kCast;
  EXPECT_FALSE(cast.Equal(0, 2));
}

TEST(PairDigests, EachTransferIsAddedOnceWhoeverSendsIt) {
  const OneTrainer trainer({Holding(Rows(0, kRows))});
  const std::vector<std::byte> bytes(kRows * kColumns * sizeof(float), std::byte{7});
  std::atomic<int> located = 0;
  DeviceMemories none((Settings()));
  const auto locate = [&](const Item&) {
    ++located;
    return ItemBytes{.in = ItemBytes::In::kDestination, .data = bytes.data()};
  };
  const auto once = PairDigests::Make(trainer.table, trainer.batches[0], trainer.All(0)).value();
  for (uint32_t i = 0; i < trainer.All(0).count(); ++i) ASSERT_TRUE(once->Add(i, none, locate).ok());
  const int items = located.exchange(0);
  ASSERT_GT(items, 1);

  const auto shared = PairDigests::Make(trainer.table, trainer.batches[0], trainer.All(0)).value();
  const auto add_all = [&] {
    for (uint32_t i = 0; i < trainer.All(0).count(); ++i) EXPECT_TRUE(shared->Add(i, none, locate).ok());
    // What has been added when Add returns, by whomever, is in the sums.
    EXPECT_EQ(shared->Sums(), once->Sums());
  };
  std::thread other(add_all);
  add_all();
  other.join();
  EXPECT_EQ(located, items);
}

}  // namespace
}  // namespace weightcast::worker
