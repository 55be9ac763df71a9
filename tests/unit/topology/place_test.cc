#include "topology/place.h"

#include <gtest/gtest.h>

namespace weightcast::topology {
namespace {

const Place kGpu{.path = {"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0"}, .node = 0};

TEST(Place, HasTheAddressOfItsLastDevice) {
  EXPECT_EQ(kGpu.address(), "0000:17:00.0");
  EXPECT_EQ((Place{.path = {"pci0000:15"}, .node = 0}).address(), "");
  EXPECT_EQ(Place{}.address(), "");
}

TEST(DistanceOf, IsTheCommonAncestor) {
  const Place sibling{.path = {"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.1"}, .node = 0};
  const Place cousin{.path = {"pci0000:15", "0000:15:01.0", "0000:16:01.0", "0000:18:00.0"}, .node = 0};
  const Place port{.path = {"pci0000:15", "0000:15:02.0", "0000:19:00.0"}, .node = 0};
  EXPECT_EQ(DistanceOf(kGpu, sibling, 2), (Distance{Nearness::kSwitch, 2}));
  EXPECT_EQ(DistanceOf(kGpu, cousin, 2), (Distance{Nearness::kSwitch, 4}));
  EXPECT_EQ(DistanceOf(kGpu, port, 2), Distance{Nearness::kHostBridge});
  EXPECT_LT(DistanceOf(kGpu, sibling, 2), DistanceOf(kGpu, cousin, 2));
  EXPECT_LT(DistanceOf(kGpu, cousin, 2), DistanceOf(kGpu, port, 2));
}

TEST(DistanceOf, IsTheNodeWhereNoBridgeIsShared) {
  const Place near{.path = {"pci0000:37", "0000:37:01.0"}, .node = 0};
  const Place far{.path = {"pci0000:97", "0000:97:01.0"}, .node = 1};
  const Place silent{.path = {"pci0000:b7", "0000:b7:01.0"}, .node = -1};
  EXPECT_EQ(DistanceOf(kGpu, near, 2), Distance{Nearness::kNode});
  EXPECT_EQ(DistanceOf(kGpu, far, 2), Distance{Nearness::kOtherNode});
  EXPECT_EQ(DistanceOf(kGpu, silent, 2), Distance{Nearness::kUnknown});
  EXPECT_EQ(DistanceOf(kGpu, Place{}, 2), Distance{Nearness::kUnknown});
  EXPECT_EQ(DistanceOf({.path = {}, .node = 1}, far, 2), Distance{Nearness::kNode});
}

TEST(DistanceOf, IsOneNodeOnAMachineOfOne) {
  EXPECT_EQ(DistanceOf(kGpu, Place{}, 1), Distance{Nearness::kNode});
  EXPECT_EQ(DistanceOf(Place{}, Place{}, 0), Distance{Nearness::kNode});
}

}  // namespace
}  // namespace weightcast::topology
