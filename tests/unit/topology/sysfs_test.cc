#include "topology/sysfs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/topology/tree.h"

namespace weightcast::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Sysfs, FindsADgx) {
  Tree tree;
  MakeDgx(tree);
  const Sysfs sysfs(tree.root());
  EXPECT_THAT(sysfs.Nodes(), ElementsAre(0, 1));
  EXPECT_THAT(sysfs.RdmaDevices(), SizeIs(10));
  const auto gpus = sysfs.Gpus();
  ASSERT_THAT(gpus, SizeIs(8));
  EXPECT_EQ(gpus[0].vendor, "NVIDIA");
  EXPECT_EQ(gpus[0].device_id, 0x2330);
  EXPECT_EQ(gpus[7].place.node, 1);
  EXPECT_THAT(sysfs.PlaceOf("mlx5_0").path,
              ElementsAre("pci0000:15", "0000:15:01.0", "0000:15:10.0", "0000:15:30.0", "0000:15:50.0"));
  EXPECT_EQ(sysfs.PlaceOf("mlx5_9").node, 1);
  EXPECT_EQ(sysfs.PlaceOf("mlx5_9").address(), "0000:aa:00.0");
  EXPECT_EQ(sysfs.InterfaceOf("mlx5_9", 1, std::nullopt), "eth9");
  EXPECT_EQ(sysfs.RateOf("mlx5_9", 1), 400);
}

TEST(Sysfs, SortsNamesByTheirNumbers) {
  Tree tree;
  for (const char* name : {"mlx5_10", "mlx5_2", "mlx5_0"}) tree.VirtualRdma(name, "");
  EXPECT_THAT(Sysfs(tree.root()).RdmaDevices(), ElementsAre("mlx5_0", "mlx5_2", "mlx5_10"));
}

TEST(Sysfs, TakesTheAcceleratorsOfThoseWhoMakeGpus) {
  Tree tree;
  tree.Pci("pci0000:00/0000:00:02.0", 0, "0x038000", "0x1002", "0x740f");  // AMD MI210
  tree.Pci("pci0000:00/0000:00:03.0", 0, "0x120000", "0x1002", "0x74a1");  // AMD MI300X
  tree.Pci("pci0000:00/0000:00:04.0", 0, "0x120000", "0x8086", "0x4940");  // Intel QAT: no GPU
  tree.Pci("pci0000:00/0000:00:05.0", 0, "0x030000", "0x1234", "0x1111");  // The screen of a VM
  tree.Pci("pci0000:00/0000:00:06.0", 0, "0x040300", "0x10de", "0x22ba");  // The sound of a GPU
  const auto gpus = Sysfs(tree.root()).Gpus();
  ASSERT_THAT(gpus, SizeIs(2));
  EXPECT_EQ(gpus[0].vendor, "AMD");
  EXPECT_EQ(gpus[1].device_id, 0x74a1);
}

TEST(Sysfs, FindsPartsOfAPciDevice) {
  Tree tree;
  const std::string card = "pci0000:16/0000:16:01.0/0000:17:00.0";
  tree.Pci(card, 1);
  tree.Folder(StrCat("devices/", card, "/mlx5_core.sf.2"));
  tree.Rdma("mlx5_2", StrCat(card, "/mlx5_core.sf.2"));
  const Place place = Sysfs(tree.root()).PlaceOf("mlx5_2");
  EXPECT_EQ(place.address(), "0000:17:00.0");
  EXPECT_EQ(place.node, 1);
}

TEST(Sysfs, FindsADeviceBehindAnotherHostBridge) {
  Tree tree;  // As VMD and Hyper-V have it.
  tree.Nic("mlx5_0", "LNXSYSTM:00/VMBUS:00/4711-0815/pci0b31:00/0b31:00:02.0", -1, "eth1");
  const Place place = Sysfs(tree.root()).PlaceOf("mlx5_0");
  EXPECT_THAT(place.path, ElementsAre("pci0b31:00", "0b31:00:02.0"));
  EXPECT_EQ(place.node, -1);
}

TEST(Sysfs, GoesThroughTheInterfaceOfASoftwareDevice) {
  Tree tree;
  tree.Pci("pci0000:00/0000:00:05.0", 0);
  tree.Folder("devices/pci0000:00/0000:00:05.0/virtio3");
  tree.Interface("eth0", "pci0000:00/0000:00:05.0/virtio3");
  tree.VirtualInterface("eth0.7", {"eth0"});
  tree.VirtualInterface("v0", {});
  tree.VirtualRdma("rxe0", "eth0");
  tree.VirtualRdma("rxe1", "eth0.7");
  tree.VirtualRdma("rxe2", "v0");
  tree.VirtualRdma("rxe3", "gone");
  tree.VirtualRdma("rxe4", "");
  const Sysfs sysfs(tree.root());
  EXPECT_EQ(sysfs.PlaceOf("rxe0").address(), "0000:00:05.0");
  EXPECT_EQ(sysfs.PlaceOf("rxe1").address(), "0000:00:05.0");
  for (const char* name : {"rxe2", "rxe3", "rxe4"}) {
    EXPECT_THAT(sysfs.PlaceOf(name).path, IsEmpty());
    EXPECT_EQ(sysfs.PlaceOf(name).node, -1);
  }
  EXPECT_EQ(sysfs.InterfaceOf("rxe1", 1, std::nullopt), "eth0.7");
  EXPECT_EQ(sysfs.InterfaceOf("rxe4", 1, std::nullopt), "");
}

TEST(Sysfs, HasOfABondWhatItsDevicesShare) {
  Tree tree;
  tree.Nic("mlx5_0", "pci0000:16/0000:16:01.0/0000:17:00.0", 0, "eth0");
  tree.Nic("mlx5_1", "pci0000:16/0000:16:01.0/0000:17:00.1", 0, "eth1");
  tree.Nic("mlx5_2", "pci0000:97/0000:97:01.0/0000:98:00.0", 1, "eth2");
  tree.VirtualInterface("bond0", {"eth0", "eth1"});
  tree.VirtualInterface("bond1", {"eth0", "eth2"});
  tree.VirtualRdma("rxe0", "bond0");
  tree.VirtualRdma("rxe1", "bond1");
  const Sysfs sysfs(tree.root());
  EXPECT_THAT(sysfs.PlaceOf("rxe0").path, ElementsAre("pci0000:16", "0000:16:01.0"));
  EXPECT_EQ(sysfs.PlaceOf("rxe0").node, 0);
  EXPECT_THAT(sysfs.PlaceOf("rxe1").path, IsEmpty());
  EXPECT_EQ(sysfs.PlaceOf("rxe1").node, -1);
}

TEST(Sysfs, TakesABondInHardwareAsItsFirstDevice) {
  Tree tree;
  tree.Nic("mlx5_bond_0", "pci0000:16/0000:16:01.0/0000:17:00.0", 0, "eth0");
  tree.Pci("pci0000:16/0000:16:01.0/0000:17:00.1", 0);
  tree.Interface("eth1", "pci0000:16/0000:16:01.0/0000:17:00.1", 1);
  tree.VirtualInterface("bond0", {"eth0", "eth1"});
  tree.Write("class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/3", "bond0");
  const Sysfs sysfs(tree.root());
  EXPECT_EQ(sysfs.PlaceOf("mlx5_bond_0").address(), "0000:17:00.0");
  EXPECT_EQ(sysfs.InterfaceOf("mlx5_bond_0", 1, 3), "bond0");
}

TEST(Sysfs, EndsWhereInterfacesPointAtEachOther) {
  Tree tree;
  tree.VirtualInterface("a", {"b"});
  tree.VirtualInterface("b", {"a"});
  tree.VirtualRdma("rxe0", "a");
  EXPECT_THAT(Sysfs(tree.root()).PlaceOf("rxe0").path, IsEmpty());
}

TEST(Sysfs, TellsTheInterfacesOfPortsApart) {
  Tree tree;
  tree.Pci("pci0000:16/0000:17:00.0", 0);
  tree.Rdma("mlx4_0", "pci0000:16/0000:17:00.0");
  tree.Interface("ib0", "pci0000:16/0000:17:00.0", 0);
  tree.Interface("ib1", "pci0000:16/0000:17:00.0", 1);
  tree.Write("class/infiniband/mlx4_0/ports/1/gid_attrs/ndevs/3", "ib0.8002");
  const Sysfs sysfs(tree.root());
  EXPECT_EQ(sysfs.InterfaceOf("mlx4_0", 1, 0), "ib0");
  EXPECT_EQ(sysfs.InterfaceOf("mlx4_0", 2, 0), "ib1");
  EXPECT_EQ(sysfs.InterfaceOf("mlx4_0", 1, 3), "ib0.8002");
}

TEST(Sysfs, IsEmptyWhereNothingIsMounted) {
  const Sysfs sysfs("/nothing/here");
  EXPECT_THAT(sysfs.RdmaDevices(), IsEmpty());
  EXPECT_THAT(sysfs.Gpus(), IsEmpty());
  EXPECT_THAT(sysfs.Nodes(), IsEmpty());
  EXPECT_THAT(sysfs.PlaceOf("mlx5_0").path, IsEmpty());
  EXPECT_EQ(sysfs.InterfaceOf("mlx5_0", 1, 0), "");
  EXPECT_EQ(sysfs.RateOf("mlx5_0", 1), 0);
}

}  // namespace
}  // namespace weightcast::topology
