#include <gmock/gmock.h>

#include "transport/verbs/port.h"
#include "unit/transport/verbs_device.h"

// Which address a port has for peers.

namespace weightcast::transport::verbs {
namespace {

using ::testing::HasSubstr;

fake::HostConfig With(fake::PortConfig port) {
  fake::HostConfig config = Nics(1);
  config.devices[0].ports[0] = std::move(port);
  return config;
}

Settings With(std::string Settings::* setting, std::string value) {
  Settings settings;
  settings.*setting = std::move(value);
  return settings;
}

TEST(VerbsPortAddressTest, OfSeveralPortsItIsThatOne) {
  fake::HostConfig config = With({.ipv4 = "10.0.0.1"});
  config.devices[0].ports.push_back({.rail = 1, .ipv4 = "10.1.0.2", .mtu = IBV_MTU_1024});
  OpenedDevice opened(config, 2);
  Port port(opened.device, 2, {});
  EXPECT_FALSE(port.up()) << "nobody has asked";
  port.Read();
  ASSERT_TRUE(port.up()) << port.why_down().message();
  EXPECT_EQ(opened.device.name(), "nic0:2");
  EXPECT_EQ(ToString(port.address()), "10.1.0.2");
  EXPECT_EQ(port.address().mtu, IBV_MTU_1024);
}

TEST(VerbsPortAddressTest, TheGidIsTheSettingsOrRoceV2OverIPv4) {
  OpenedDevice opened(With({.ipv4 = "10.0.0.1", .roce_v1 = true}));  // v1 and v2 in turn.
  for (const auto& [setting, index, address] : {std::tuple("", 3, "10.0.0."), {"1", 1, "fe80::"}}) {
    SCOPED_TRACE(setting);
    Port port(opened.device, 1, With(&Settings::gid_index, setting));
    port.Read();
    EXPECT_EQ(port.gid_index(), index);
    EXPECT_THAT(ToString(port.address()), HasSubstr(address));
  }
  Port port(opened.device, 1, With(&Settings::gid_index, "9"));
  port.Read();
  EXPECT_THAT(port.why_down().message(), AllOf(HasSubstr("nic0: "), HasSubstr("gid_index")));
}

TEST(VerbsPortAddressTest, OnInfiniBandItIsTheLidAndThePartitionOfTheSetting) {
  OpenedDevice opened(With({.infiniband = true, .lid = 7, .pkeys = {0x7fff, 0x8001, 0x8002}}));
  for (const auto& [setting, index] : {std::pair("", 1), {"0x8002", 2}}) {
    SCOPED_TRACE(setting);
    Port port(opened.device, 1, With(&Settings::pkey, setting));
    port.Read();
    EXPECT_EQ(ToString(port.address()), "LID 7");
    EXPECT_EQ(port.pkey_index(), index);
    EXPECT_EQ(port.address().pkey, 0x8000 + index);
  }
}

TEST(VerbsPortAddressTest, APortThatIsDownSaysWhyAndKeepsItsAddressUntilItIsUpUnderAnother) {
  OpenedDevice opened(With({.ipv4 = "10.0.0.1"}));
  Port port(opened.device, 1, {});
  port.Read();
  const Address before = port.address();
  port.lost_peers().OnFailed(before.gid, 1s, Clock::now());
  testing::internal::CaptureStderr();
  opened.fabric.SetLink(*opened.host, 0, fake::Link::kDown);
  port.OnChanged();
  EXPECT_FALSE(port.up());
  EXPECT_THAT(port.why_down().message(), HasSubstr("nic0: port 1 is not up"));
  EXPECT_EQ(port.address(), before);
  EXPECT_FALSE(port.lost_peers().Wait(before.gid, Clock::now())) << "the way there may be another one";
  opened.fabric.SetPort(*opened.host, 0, {.ipv4 = "10.0.0.77"});
  opened.fabric.SetLink(*opened.host, 0, fake::Link::kUp);
  port.OnChanged();
  EXPECT_TRUE(port.up());
  EXPECT_EQ(ToString(port.address()), "10.0.0.77");
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, HasSubstr("going on without it"));
}

}  // namespace
}  // namespace weightcast::transport::verbs
