#include "device/devices.h"

#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

TEST(DevicesTest, ADeviceHasOneWorkerAsLongAsSomebodyHoldsIt) {
  Host host;
  {
    Devices devices(Gpus::Create(host.cuda).value());
    Device first = devices.Of(0).value();
    EXPECT_EQ(devices.Of(0).value().worker, first.worker);
    EXPECT_EQ(devices.Of(0).value().mappings, first.mappings);
    {
      const SecondDevice second(host);
      EXPECT_NE(devices.Of(1).value().worker, first.worker);
    }
    EXPECT_EQ(fake_cuda_live(0).contexts, 1U) << "the other one's worker has ended";
    const std::weak_ptr<Worker> before = first.worker;
    first = {};
    EXPECT_TRUE(before.expired());
    EXPECT_EQ(devices.Of(5).status().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace weightcast::device
