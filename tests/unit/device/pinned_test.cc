#include "device/pinned.h"

#include <vector>

#include "unit/device/world.h"

namespace weightcast::device {
namespace {

TEST(PinnedPoolTest, PinsWhatIsMissedUpToItsLimit) {
  World world;
  {
    PinnedPool pool(world.worker, 4096, 2 * 4096 + 100);
    EXPECT_EQ(pool.Take(), nullptr) << "the worker has yet to pin it";
    EXPECT_EQ(pool.Take(), nullptr);
    world.Settle();
    std::byte* const first = pool.Take();
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(pool.Take(), nullptr);
    world.Settle();
    std::byte* const second = pool.Take();
    ASSERT_NE(second, nullptr);
    EXPECT_NE(first, second);
    EXPECT_EQ(pool.Take(), nullptr);
    world.Settle();
    EXPECT_EQ(pool.Take(), nullptr) << "the limit";
    EXPECT_EQ(pool.pinned(), 2U);
    pool.Give(first);
    EXPECT_EQ(pool.Take(), first);
    pool.Give(first);
    pool.Give(second);
  }
  world.Settle();
}

TEST(PinnedPoolTest, SaysWhenTheDriverPinsNoMore) {
  World world;
  {
    PinnedPool pool(world.worker, 4096, 1 << 20);
    world.cuda->FailNext("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(pool.Take(), nullptr);
    world.Settle();
    EXPECT_EQ(pool.Take(), nullptr);
    EXPECT_TRUE(pool.refused());
    EXPECT_EQ(pool.pinned(), 0U);
    const int calls = world.cuda->calls();
    world.Settle();
    EXPECT_EQ(world.cuda->calls(), calls) << "not tried again";
  }
  world.Settle();
}

TEST(PinnedRangeTest, IsUnpinnedByTheWorker) {
  World world;
  std::vector<std::byte> ring(1 << 16);
  auto range = world.OnWorker([&] { return PinnedRange::Pin(world.worker, ring); }).value();
  EXPECT_EQ(world.cuda->live(), 1);
  range.reset();
  EXPECT_EQ(world.cuda->live(), 1);
  world.Settle();
  EXPECT_EQ(world.cuda->live(), 0);
  world.cuda->FailNext("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(world.OnWorker([&] { return PinnedRange::Pin(world.worker, ring).status(); }).code(),
            Code::kExhausted);
}

}  // namespace
}  // namespace weightcast::device
