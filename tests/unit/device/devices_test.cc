#include "device/devices.h"

#include "unit/device/world.h"

namespace weightcast::device {
namespace {

TEST(DevicesTest, ADeviceHasOneWorkerAsLongAsSomebodyHoldsIt) {
  const auto cuda = std::make_shared<SimpleCuda>();
  {
    Devices devices(Gpus::Create(cuda).value());
    Device first = devices.Of(0).value();
    EXPECT_EQ(devices.Of(0).value().worker, first.worker);
    EXPECT_EQ(devices.Of(0).value().mappings, first.mappings);
    EXPECT_NE(devices.Of(1).value().worker, first.worker);
    EXPECT_EQ(cuda->contexts(), 1) << "the other one's worker has ended";
    const std::weak_ptr<Worker> before = first.worker;
    first = {};
    EXPECT_TRUE(before.expired());
    EXPECT_EQ(devices.Of(5).status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(cuda->contexts(), 0);
}

}  // namespace
}  // namespace weightcast::device
