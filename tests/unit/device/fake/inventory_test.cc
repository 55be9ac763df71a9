#include "device/inventory.h"

#include <cstdlib>

#include "device/copy_queue.h"
#include "drivers/cuda/load.h"
#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

/// As a process that was started with WEIGHTCAST_CUDA_LIBRARY. The library stays loaded, as all of this
/// program's tests have it.
class InventoryTest : public ::testing::Test {
 protected:
  InventoryTest() { setenv(drivers::kCudaLibraryVariable, FAKE_CUDA_LIBRARY, 1); }
  ~InventoryTest() override { unsetenv(drivers::kCudaLibraryVariable); }
};

TEST_F(InventoryTest, ListsTheDevicesAndWhomTheyReach) {
  const Host host("gpus=3,peer=0-1,driver=12080");
  const Inventory inventory = TakeInventory(Settings());
  ASSERT_TRUE(inventory.status.ok()) << inventory.status.ToString();
  EXPECT_EQ(inventory.driver, "12.8");
  ASSERT_EQ(inventory.gpus.size(), 3U);
  EXPECT_EQ(inventory.gpus[2].gpu.name, "Fake GPU 2");
  EXPECT_EQ(inventory.gpus[2].pci_address, "0000:12:00.0");
  EXPECT_EQ(inventory.gpus[0].reaches, std::vector<int>{1});
  EXPECT_EQ(inventory.gpus[1].reaches, std::vector<int>{0});
  EXPECT_EQ(inventory.gpus[2].reaches, std::vector<int>{});
  EXPECT_EQ(inventory.gpus[0].uuid.size(), 40U);
  EXPECT_TRUE(inventory.gpus[2].uuid.starts_with("GPU-"));
  EXPECT_TRUE(inventory.gpus[2].uuid.ends_with("-6661-6b6567707502")) << inventory.gpus[2].uuid;
  EXPECT_EQ(fake_cuda_live(0).contexts, 1U) << "a context was made, which costs 525 MiB";
}

TEST_F(InventoryTest, TurnedOffNothingIsLoadedOrCalled) {
  const Host host;
  const uint64_t calls = fake_cuda_calls(nullptr);
  Settings settings;
  settings.gpu = "off";
  const Inventory inventory = TakeInventory(settings);
  EXPECT_EQ(inventory.status.code(), Code::kUnavailable);
  EXPECT_NE(inventory.status.message().find("setting gpu"), std::string::npos) << inventory.status.message();
  EXPECT_TRUE(inventory.gpus.empty());
  EXPECT_EQ(fake_cuda_calls(nullptr), calls);
}

TEST_F(InventoryTest, SaysWhatTheDriverSaysWhereItShowsNoDevice) {
  fake_cuda_start("");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const Inventory inventory = TakeInventory(Settings());
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(fake_cuda_stop(), 0U);
  EXPECT_NE(inventory.status.message().find("cuInit: no CUDA-capable device is detected"), std::string::npos)
      << inventory.status.ToString();
  EXPECT_TRUE(inventory.gpus.empty());
}

TEST(CopyQueueSettingsTest, TheSettingSaysHowManyStreamsCopy) {
  Settings settings;
  EXPECT_EQ(CopyOptions(settings).streams, 2);
  settings.copy_streams = 5;
  FakeWorld world;
  {
    CopyQueue queue(world.worker, CopyOptions(settings));
    std::byte* const pinned = world.host.Pinned(2);
    const Copy copy{.to = pinned, .from = pinned + 1, .length = 1};
    ASSERT_TRUE(queue.Submit({&copy, 1}).has_value());
    world.Settle();
    EXPECT_EQ(fake_cuda_live(0).streams, 5U);
    EXPECT_EQ(world.host.cuda->MemFreeHost(pinned), drivers::CUDA_SUCCESS);
  }
  world.Settle();
}

}  // namespace
}  // namespace weightcast::device
