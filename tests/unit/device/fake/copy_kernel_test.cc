// Copies that a queue leaves to a kernel instead of the driver's copy calls.
#include <array>
#include <string>
#include <vector>

#include "device/kernels.h"
#include "unit/device/fake/bytes.h"
#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

std::vector<Copy> Parts(const Bytes& bytes, size_t count, size_t length, Ends ends) {
  std::vector<Copy> parts;
  for (size_t i = 0; i < count; ++i) {
    parts.push_back(bytes.At(i * length, length));
    parts.back().ends = ends;
  }
  return parts;
}

uint64_t DriversCopies() { return fake_cuda_calls("cuMemcpyAsync") + fake_cuda_calls("cuMemcpyBatchAsync"); }

struct Scene {
  explicit Scene(size_t length, const CopyQueueOptions& options = {})
      : bytes(world.host, length), queue(world.worker, options) {}
  void LoadKernels() { loaded = world.worker->kernels()->Get().ok(); }
  /// What launches and what calls of the driver's a batch takes.
  std::string Copied(const std::vector<Copy>& copies) {
    const uint64_t launches = fake_cuda_calls("cuLaunchKernel");
    const uint64_t calls = DriversCopies();
    bytes.Wipe(0, bytes.length());
    EXPECT_TRUE(queue.Submit(copies));
    world.Settle();
    const auto finished = queue.TakeFinished();
    EXPECT_TRUE(finished && finished->ok);
    for (const Copy& copy : copies) {
      const auto offset = static_cast<size_t>(copy.to - bytes.At(0, 1).to);
      EXPECT_TRUE(bytes.Arrived(offset, copy.length));
    }
    return std::to_string(fake_cuda_calls("cuLaunchKernel") - launches) + " launches, " +
           std::to_string(DriversCopies() - calls) + " calls";
  }
  FakeWorld world;
  Bytes bytes;
  CopyQueue queue;
  bool loaded = false;
};

TEST(CopyByKernel, SmallOnesOfTwoDevicesAndMostWithinOne) {
  Scene scene(size_t{9} << 20);
  scene.LoadKernels();
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 1, 4096, Ends::kOneDevice)), "1 launches, 0 calls");
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 2, 4 << 20, Ends::kOneDevice)), "1 launches, 0 calls");
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 1, 9 << 20, Ends::kOneDevice)), "0 launches, 1 calls");
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 10, 1000, Ends::kDevices)), "1 launches, 0 calls");
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 3, 1000, Ends::kDevices)), "0 launches, 1 calls");
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 4, 1 << 20, Ends::kDevices)), "0 launches, 1 calls");
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 10, 1000, Ends::kHost)), "0 launches, 1 calls");
}

TEST(CopyByKernel, SettingsSayWhichWithinADevice) {
  Settings settings;
  settings.copy_by_kernel = 0;
  settings.copy_blocks = 132;
  EXPECT_EQ(CopyOptions(settings).blocks, 132U);
  {
    Scene scene(1000 * 10, CopyOptions(settings));
    scene.LoadKernels();
    EXPECT_EQ(scene.Copied(Parts(scene.bytes, 10, 1000, Ends::kOneDevice)), "0 launches, 1 calls");
    EXPECT_EQ(scene.Copied(Parts(scene.bytes, 10, 1000, Ends::kDevices)), "1 launches, 0 calls");
  }
  settings.copy_by_kernel = uint64_t{1} << 30;
  Scene scene(size_t{9} << 20, CopyOptions(settings));
  scene.LoadKernels();
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 1, 9 << 20, Ends::kOneDevice)), "1 launches, 0 calls");
}

TEST(CopyByKernel, ManyTakeALaunchForWhatOneHolds) {
  Scene scene(1000 * 37);
  scene.LoadKernels();
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 1000, 37, Ends::kOneDevice)), "5 launches, 0 calls");
}

TEST(CopyByKernel, OneHostMemoryAmongThemKeepsAllWithTheDriver) {
  Scene scene(1000);
  scene.LoadKernels();
  auto parts = Parts(scene.bytes, 10, 100, Ends::kOneDevice);
  parts[7].ends = Ends::kHost;
  EXPECT_EQ(scene.Copied(parts), "0 launches, 1 calls");
}

TEST(CopyByKernel, WithoutKernelsTheDriverCopies) {
  {
    Scene scene(1000, {.use_kernels = false});
    scene.LoadKernels();
    EXPECT_EQ(scene.Copied(Parts(scene.bytes, 10, 100, Ends::kOneDevice)), "0 launches, 1 calls");
  }
  {
    Scene scene(1000);
    EXPECT_EQ(scene.Copied(Parts(scene.bytes, 10, 100, Ends::kOneDevice)), "0 launches, 1 calls");
    EXPECT_EQ(fake_cuda_calls("cuModuleLoadDataEx"), 0U) << "it would wait behind kernels that run";
    scene.LoadKernels();
    EXPECT_EQ(scene.Copied(Parts(scene.bytes, 10, 100, Ends::kOneDevice)), "1 launches, 0 calls");
  }
  Scene scene(1000);
  fake_cuda_fail(0, "cuModuleLoadDataEx", 1, drivers::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  scene.LoadKernels();
  EXPECT_FALSE(scene.loaded);
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 10, 100, Ends::kOneDevice)), "0 launches, 1 calls");
  scene.LoadKernels();
  EXPECT_EQ(fake_cuda_calls("cuModuleLoadDataEx"), 1U) << "it is not tried again";
}

TEST(CopyByKernel, QueuesOfADeviceShareTheKernels) {
  Scene scene(1000);
  scene.LoadKernels();
  CopyQueue other(scene.world.worker);
  EXPECT_EQ(scene.Copied(Parts(scene.bytes, 10, 100, Ends::kOneDevice)), "1 launches, 0 calls");
  const auto parts = Parts(scene.bytes, 10, 100, Ends::kOneDevice);
  EXPECT_TRUE(other.Submit(parts));
  scene.world.Settle();
  EXPECT_TRUE(other.TakeFinished());
  EXPECT_EQ(fake_cuda_calls("cuModuleLoadDataEx"), 1U);
}

TEST(CopyByKernel, ALaunchThatFailsEndsTheQueue) {
  Scene scene(1000);
  scene.LoadKernels();
  fake_cuda_fail(0, "cuLaunchKernel", 1, drivers::CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(scene.queue.Submit(Parts(scene.bytes, 10, 100, Ends::kOneDevice)));
  scene.world.Settle();
  const auto finished = scene.queue.TakeFinished();
  ASSERT_TRUE(finished);
  EXPECT_FALSE(finished->ok);
  EXPECT_EQ(scene.queue.failure().code(), Code::kInternal);
}

}  // namespace
}  // namespace weightcast::device
