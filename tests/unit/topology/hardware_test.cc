#include "topology/hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "fake_ibverbs/fabric.h"
#include "unit/topology/tree.h"

namespace weightcast::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Api = Result<std::shared_ptr<drivers::Ibverbs>>;

fake::DeviceConfig Device(std::string name) {
  fake::DeviceConfig config;
  config.name = std::move(name);
  return config;
}

fake::HostConfig Devices(const std::string& prefix, int count) {
  fake::HostConfig host{.devices = {}};
  for (int i = 0; i < count; ++i) host.devices.push_back(Device(StrCat(prefix, i)));
  return host;
}

std::vector<std::string> NamesOf(const Hardware& hardware, const Tier& tier) {
  std::vector<std::string> names;
  for (const size_t nic : tier.nics) names.push_back(hardware.ports[nic].name);
  return names;
}

TEST(LookAtHardware, GivesEachGpuOfADgxANicOfItsOwn) {
  Tree tree;
  MakeDgx(tree);
  fake::Fabric fabric;
  const auto hardware =
      LookAtHardware(Settings(), Api(fabric.NewHost(Devices("mlx5_", 10))), Sysfs(tree.root()));
  EXPECT_TRUE(hardware.rdma.ok());
  ASSERT_THAT(hardware.ports, SizeIs(10));
  const auto nearest = hardware.NearestToGpus();
  ASSERT_THAT(nearest, SizeIs(8));
  for (size_t gpu = 0; gpu < 8; ++gpu) {
    const Tier& first = nearest[gpu][0];
    EXPECT_EQ(first.distance.nearness, Nearness::kSwitch) << gpu;
    ASSERT_THAT(first.nics, SizeIs(2)) << gpu;
    EXPECT_EQ(first.nics[0], gpu);
    EXPECT_EQ(first.nics[1], gpu ^ 1);
    ASSERT_THAT(nearest[gpu], SizeIs(3)) << gpu;
    EXPECT_EQ(nearest[gpu][1].distance.nearness, Nearness::kNode);
    EXPECT_THAT(nearest[gpu][1].nics, SizeIs(3));
    EXPECT_EQ(nearest[gpu][2].distance.nearness, Nearness::kOtherNode);
    EXPECT_THAT(nearest[gpu][2].nics, SizeIs(5));
  }
  const auto nodes = hardware.NearestToNodes();
  ASSERT_THAT(nodes, SizeIs(2));
  EXPECT_THAT(NamesOf(hardware, nodes[1][0]), ElementsAre("mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_9"));
}

TEST(LookAtHardware, GivesTwoSocketsTheirNics) {
  Tree tree;
  tree.Nodes(2);
  tree.Nic("mlx5_0", "pci0000:16/0000:16:01.0/0000:17:00.0", 0, "eth0");
  tree.Nic("mlx5_1", "pci0000:97/0000:97:01.0/0000:98:00.0", 1, "eth1");
  fake::Fabric fabric;
  const auto hardware =
      LookAtHardware(Settings(), Api(fabric.NewHost(Devices("mlx5_", 2))), Sysfs(tree.root()));
  EXPECT_THAT(hardware.NearestToGpus(), IsEmpty());
  const auto nodes = hardware.NearestToNodes();
  for (size_t node = 0; node < 2; ++node) {
    EXPECT_EQ(nodes[node][0].distance.nearness, Nearness::kNode);
    EXPECT_THAT(nodes[node][0].nics, ElementsAre(node));
    EXPECT_THAT(nodes[node][1].nics, ElementsAre(1 - node));
  }
}

TEST(LookAtHardware, TakesAllNicsAlikeInAMachineWithoutNodes) {
  Tree tree;
  tree.Gpu("pci0000:00/0000:00:05.0", -1);
  tree.Gpu("pci0000:00/0000:00:06.0", -1);
  tree.Nic("mlx5_0", "pci0000:00/0000:00:07.0", -1, "eth0");
  tree.Nic("mlx5_1", "pci0000:00/0000:00:08.0", -1, "eth1");
  fake::Fabric fabric;
  const auto hardware =
      LookAtHardware(Settings(), Api(fabric.NewHost(Devices("mlx5_", 2))), Sysfs(tree.root()));
  const auto nearest = hardware.NearestToGpus();
  ASSERT_THAT(nearest, SizeIs(2));
  ASSERT_THAT(nearest[1], SizeIs(1));
  EXPECT_EQ(nearest[1][0].distance.nearness, Nearness::kHostBridge);
  EXPECT_THAT(nearest[0][0].nics, ElementsAre(0, 1));
  EXPECT_THAT(nearest[1][0].nics, ElementsAre(1, 0));
}

TEST(LookAtHardware, TellsWhatAPortIs) {
  Tree tree;
  tree.Nic("mlx5_0", "pci0000:16/0000:16:01.0/0000:17:00.0", 0, "eth0");
  tree.Write("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1", "eth0.5");
  auto config = Device("mlx5_0");
  config.ports = {{.rail = 3, .active_width = 2, .active_speed = 128},
                  {.infiniband = true, .active_width = 4, .active_speed = 1}};
  fake::Fabric fabric;
  const auto hardware =
      LookAtHardware(Settings(), Api(fabric.NewHost({.devices = {config}})), Sysfs(tree.root()));
  ASSERT_THAT(hardware.ports, SizeIs(2));
  const RdmaPort& first = hardware.ports[0];
  EXPECT_EQ(first.name, "mlx5_0:1");
  EXPECT_EQ(first.state, "active");
  EXPECT_EQ(first.link_layer, "Ethernet");
  EXPECT_EQ(first.gbit_per_second, 400);
  EXPECT_EQ(first.gid, "10.3.0.1");
  EXPECT_EQ(first.gid_index, 1);
  EXPECT_EQ(first.interface, "eth0.5");
  EXPECT_EQ(first.place.address(), "0000:17:00.0");
  EXPECT_EQ(first.refused, "");
  EXPECT_EQ(hardware.ports[1].name, "mlx5_0:2");
  EXPECT_EQ(hardware.ports[1].link_layer, "InfiniBand");
  EXPECT_EQ(hardware.ports[1].gbit_per_second, 20);
  EXPECT_THAT(hardware.ports[1].gid, HasSubstr("fe80::"));
}

TEST(LookAtHardware, TakesTheKernelsRateOfAFasterLink) {
  Tree tree;
  tree.Nic("mlx5_0", "pci0000:16/0000:17:00.0", 0, "eth0");
  auto config = Device("mlx5_0");
  config.ports[0].active_speed = 0;
  fake::Fabric fabric;
  const auto hardware =
      LookAtHardware(Settings(), Api(fabric.NewHost({.devices = {config}})), Sysfs(tree.root()));
  EXPECT_EQ(hardware.ports.at(0).gbit_per_second, 400);
}

TEST(LookAtHardware, SaysWhyAPortIsNotUsed) {
  Tree tree;
  fake::Fabric fabric;
  const auto host = fabric.NewHost(Devices("mlx5_", 5));
  fabric.Fail(*host, fake::Call::kOpenDevice, 1, EACCES);
  fabric.SetLink(*host, 1, fake::Link::kDown);
  fabric.Fail(*host, fake::Call::kQueryDevice, 4, EIO);  // Of mlx5_4, since mlx5_0 is not open.
  Settings settings;
  settings.nics = "^mlx5_2";
  const auto hardware = LookAtHardware(settings, Api(host), Sysfs(tree.root()));
  ASSERT_THAT(hardware.ports, SizeIs(5));
  EXPECT_THAT(hardware.ports[0].refused, AllOf(HasSubstr("cannot be opened"), HasSubstr("/dev/infiniband")));
  EXPECT_EQ(hardware.ports[0].state, "unknown");
  EXPECT_EQ(hardware.ports[1].refused, "its port is not active but down; check cable and switch");
  EXPECT_EQ(hardware.ports[1].gid, "10.0.1.1");
  EXPECT_EQ(hardware.ports[2].refused, "setting nics leaves it out");
  EXPECT_EQ(hardware.ports[3].refused, "");
  EXPECT_THAT(hardware.ports[4].refused, HasSubstr("cannot be queried"));
  // Only what is used is near to anything.
  for (int i = 0; i < 2; ++i) tree.Folder(StrCat("devices/system/node/node", i));
  const auto again = LookAtHardware(settings, Api(host), Sysfs(tree.root()));
  EXPECT_THAT(NamesOf(again, again.NearestToNodes()[0][0]), ElementsAre("mlx5_0", "mlx5_3", "mlx5_4"));
}

/// As many as the verbs transport opens, in the same order; those that are left out do not count.
TEST(LookAtHardware, UsesNoMorePortsThanAProcessDoes) {
  Tree tree;
  fake::Fabric fabric;
  const auto host = fabric.NewHost(Devices("nic", 19));
  fabric.SetLink(*host, 3, fake::Link::kDown);
  Settings settings;
  settings.nics = "^nic0";
  const auto hardware = LookAtHardware(settings, Api(host), Sysfs(tree.root()));
  ASSERT_THAT(hardware.ports, SizeIs(19));
  EXPECT_EQ(hardware.ports[16].refused, "");
  EXPECT_THAT(hardware.ports[17].refused, AllOf(HasSubstr("16"), HasSubstr("nics")));
  EXPECT_THAT(hardware.ports[18].refused, HasSubstr("16"));
}

TEST(LookAtHardware, SaysWhyThereIsNoGid) {
  Tree tree;
  fake::Fabric fabric;
  const auto host = fabric.NewHost(Devices("mlx5_", 1));
  Settings settings;
  settings.gid_index = "9";
  EXPECT_THAT(LookAtHardware(settings, Api(host), Sysfs(tree.root())).ports.at(0).refused,
              HasSubstr("gid_index"));
  fabric.Fail(*host, fake::Call::kQueryGid, 1, ENODATA, 1000);
  EXPECT_THAT(LookAtHardware(Settings(), Api(host), Sysfs(tree.root())).ports.at(0).refused,
              HasSubstr("no RoCE v2 entry"));
}

TEST(LookAtHardware, ShowsDevicesThatLibibverbsCannotSee) {
  Tree tree;
  tree.Nic("mlx5_0", "pci0000:16/0000:17:00.0", 0, "eth0");
  tree.Rdma("mlx5_1", "pci0000:16/0000:17:00.0");
  fake::Fabric fabric;
  const auto hardware =
      LookAtHardware(Settings(), Api(fabric.NewHost(Devices("mlx5_", 1))), Sysfs(tree.root()));
  ASSERT_THAT(hardware.ports, SizeIs(2));
  EXPECT_EQ(hardware.ports[0].refused, "");
  EXPECT_THAT(hardware.ports[1].refused, HasSubstr("libibverbs does not list it"));

  const Status missing(Code::kUnavailable, "libibverbs.so.1 cannot be loaded");
  const auto without = LookAtHardware(Settings(), Api(missing), Sysfs(tree.root()));
  EXPECT_FALSE(without.rdma.ok());
  ASSERT_THAT(without.ports, SizeIs(2));
  EXPECT_EQ(without.ports[0].refused, missing.message());
  EXPECT_EQ(without.ports[0].interface, "eth0");
  EXPECT_EQ(without.ports[0].gbit_per_second, 400);
}

TEST(LookAtHardware, LeavesNothingOpen) {
  Tree tree;
  fake::Fabric fabric;
  const auto host = fabric.NewHost(Devices("mlx5_", 2));
  LookAtHardware(Settings(), Api(host), Sysfs(tree.root()));
  EXPECT_EQ(fabric.CountersOf(*host, 0).contexts, 0);
  EXPECT_EQ(fabric.CountersOf(*host, 1).contexts, 0);
}

}  // namespace
}  // namespace weightcast::topology
