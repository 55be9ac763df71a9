// Blocks for what is cast or gathered, in the memory of devices and of the host, on the fake driver.
#include "worker/staging.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "fake_cuda/fake_cuda.h"
#include "system/device/endpoints.h"
#include "worker/batches.h"

namespace weightcast::worker {
namespace {

constexpr int kHost = StagingPool::kHost;

/// Two blocks in all.
class StagingDevice : public ::testing::Test {
 protected:
  static Settings TwoBlocks() {
    Settings settings;
    settings.staging = 2 * kMaxTransferBytes;
    return settings;
  }
  StagingPool::Block Take(int place) {
    auto block = pool.TryTake(place);
    transport::Require(block.has_value(), "no block is free");
    return std::move(*block);
  }
  /// A device's block is filled by its kernels; what a host's block holds, the host may write.
  static bool OpensOnDevice(StagingPool::Block& block) {
    const auto space = block.Open();
    transport::Require(space.ok(), space.status().message());
    EXPECT_EQ(space->slice.length(), static_cast<uint64_t>(kMaxTransferBytes));
    if (space->kernels != nullptr) return true;
    std::memset(space->data, 1, static_cast<size_t>(kMaxTransferBytes));
    return false;
  }
  static uint64_t DeviceBytes() { return fake_cuda_live(0).bytes; }

  transport::FakeMachine machine;
  transport::DevicesInUse devices{machine};
  Side side{"trainer"};
  StagingPool pool{*side.operator->(), TwoBlocks()};
};

TEST_F(StagingDevice, AllPlacesTogetherHaveNoMoreThanTheSettingAllows) {
  ASSERT_EQ(pool.capacity(), 2U);
  const uint64_t before = DeviceBytes();
  {
    auto device = Take(0);
    auto host = Take(kHost);
    EXPECT_FALSE(pool.TryTake(1)) << "a third";
    EXPECT_TRUE(OpensOnDevice(device));
    EXPECT_FALSE(OpensOnDevice(host));
  }
  EXPECT_EQ(DeviceBytes(), before + kMaxTransferBytes) << "kept for the next";
  {
    auto other = Take(1);
    auto again = Take(1);
    EXPECT_TRUE(OpensOnDevice(other));
    EXPECT_TRUE(OpensOnDevice(again));
    EXPECT_EQ(DeviceBytes(), before + 2 * kMaxTransferBytes) << "those of other places are given up";
  }
  {
    auto first = Take(kHost);
    auto second = Take(kHost);
    EXPECT_FALSE(OpensOnDevice(first));
    EXPECT_FALSE(OpensOnDevice(second));
    EXPECT_EQ(DeviceBytes(), before);
  }
  EXPECT_EQ(pool.peak_bytes(), 2U * kMaxTransferBytes);
}

TEST_F(StagingDevice, ADeviceWithoutKernelsStagesOnTheHost) {
  fake_cuda_fail(0, "cuModuleLoadDataEx", 1, drivers::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  EXPECT_EQ(pool.Usable(0), 0);
  auto block = Take(0);
  EXPECT_FALSE(OpensOnDevice(block));
  EXPECT_EQ(pool.Usable(0), kHost) << "it is not tried again";
  EXPECT_EQ(pool.Usable(1), 1);
}

TEST_F(StagingDevice, ADeviceWithoutMemoryStagesOnTheHost) {
  fake_cuda_fail(0, "cuMemAlloc", 1, drivers::CUDA_ERROR_OUT_OF_MEMORY);
  auto block = Take(1);
  EXPECT_FALSE(OpensOnDevice(block));
  EXPECT_EQ(pool.Usable(1), kHost);
}

TEST_F(StagingDevice, ABlockThatWasNeverOpenedGoesBack) {
  {
    auto block = Take(0);
  }
  auto first = Take(0);
  auto second = Take(0);
  EXPECT_TRUE(OpensOnDevice(second));
}

}  // namespace
}  // namespace weightcast::worker
