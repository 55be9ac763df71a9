#include <vector>

#include "device/copy_queue.h"
#include "system/counted.h"
#include "unit/device/fake/bytes.h"
#include "unit/device/fake/fake_world.h"

// What a batch costs the thread that gives it: this program counts its own allocations and locks.

namespace weightcast::device {
namespace {

TEST(CopyQueueCostTest, SubmittingAllocatesNothingLocksNothingAndCallsNothing) {
  FakeWorld world;
  {
    const Bytes bytes(world.host, 8 * 100);
    CopyQueue queue(world.worker);
    std::vector<Copy> copies;
    for (size_t i = 0; i < 8; ++i) copies.push_back(bytes.At(i * 100, 100));
    for (int round = 0; round < 10; ++round) {
      const uint64_t calls = fake_cuda_calls(nullptr);
      counted = {.on = true};
      queue.Submit(copies);
      queue.TakeFinished();
      counted.on = false;
      EXPECT_EQ(fake_cuda_calls(nullptr), calls);
      EXPECT_EQ(counted.allocations, 0);
      EXPECT_EQ(counted.locks, 0);
      world.Settle();
      counted = {.on = true};
      const bool told = queue.TakeFinished().has_value();
      counted.on = false;
      EXPECT_TRUE(told);
      EXPECT_EQ(counted.allocations + counted.locks, 0);
    }
    // The counters count: making a queue allocates.
    counted = {.on = true};
    const CopyQueue another(world.worker);
    counted.on = false;
    EXPECT_GT(counted.allocations, 0);
  }
  world.Settle();
}

}  // namespace
}  // namespace weightcast::device
