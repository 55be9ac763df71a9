#include "device/pinned.h"

#include <vector>

#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

TEST(PinnedPoolTest, PinsWhatIsMissedUpToItsLimit) {
  FakeWorld world;
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
    EXPECT_EQ(fake_cuda_live(0).pinned, 2U);
    pool.Give(first);
    EXPECT_EQ(pool.Take(), first);
    pool.Give(first);
    pool.Give(second);
  }
  world.Settle();
  EXPECT_EQ(fake_cuda_live(0).pinned, 0U);
}

TEST(PinnedPoolTest, SaysWhenTheDriverPinsNoMore) {
  FakeWorld world;
  {
    PinnedPool pool(world.worker, 4096, 1 << 20);
    fake_cuda_fail(0, "cuMemHostAlloc", 1, drivers::CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(pool.Take(), nullptr);
    world.Settle();
    EXPECT_EQ(pool.Take(), nullptr);
    EXPECT_TRUE(pool.refused());
    EXPECT_EQ(pool.pinned(), 0U);
    world.Settle();
    EXPECT_EQ(fake_cuda_calls("cuMemHostAlloc"), 1U) << "not tried again";
  }
  world.Settle();
}

TEST(PinnedRangeTest, IsUnpinnedByTheWorker) {
  FakeWorld world;
  std::vector<std::byte> ring(1 << 16);
  auto range = world.OnWorker([&] { return PinnedRange::Pin(world.worker, ring); }).value();
  EXPECT_EQ(fake_cuda_live(0).pinned, 1U);
  range.reset();
  EXPECT_EQ(fake_cuda_live(0).pinned, 1U);
  world.Settle();
  EXPECT_EQ(fake_cuda_live(0).pinned, 0U);
  fake_cuda_fail(0, "cuMemHostRegister", 1, drivers::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(world.OnWorker([&] { return PinnedRange::Pin(world.worker, ring).status(); }).code(),
            Code::kExhausted);
}

}  // namespace
}  // namespace weightcast::device
