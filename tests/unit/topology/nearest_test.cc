#include "topology/nearest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/strings.h"

namespace weightcast::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Place Below(const std::string& bridge, int port, const std::string& device, int node) {
  return {.path = {StrCat("pci", bridge), StrCat(bridge, ":0", port, ".0"), device}, .node = node};
}

TEST(NearestNics, HasAllNicsNearestFirst) {
  const std::vector<Place> gpus = {Below("0000:15", 1, "0000:16:00.0", 0)};
  const std::vector<Place> nics = {{},
                                   Below("0000:97", 1, "0000:98:00.0", 1),
                                   Below("0000:37", 1, "0000:38:00.0", 0),
                                   Below("0000:15", 2, "0000:17:00.0", 0),
                                   Below("0000:15", 1, "0000:16:01.0", 0)};
  const auto nearest = NearestNics(gpus, nics, 2);
  ASSERT_THAT(nearest, SizeIs(1));
  ASSERT_THAT(nearest[0], SizeIs(5));
  const Nearness expected[] = {Nearness::kSwitch, Nearness::kHostBridge, Nearness::kNode,
                               Nearness::kOtherNode, Nearness::kUnknown};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(nearest[0][i].distance.nearness, expected[i]);
    EXPECT_THAT(nearest[0][i].nics, ElementsAre(4 - i));
  }
}

TEST(NearestNics, LetsDevicesBeginInTurn) {
  const std::vector<Place> gpus(5, {.path = {}, .node = 0});
  const std::vector<Place> nics(2, {.path = {}, .node = 0});
  const auto nearest = NearestNics(gpus, nics, 2);
  EXPECT_THAT(nearest[0][0].nics, ElementsAre(0, 1));
  EXPECT_THAT(nearest[1][0].nics, ElementsAre(1, 0));
  EXPECT_THAT(nearest[4][0].nics, ElementsAre(0, 1));
}

TEST(NearestNics, IsEmptyWithoutNics) {
  const std::vector<Place> gpus(2);
  EXPECT_THAT(NearestNics(gpus, {}, 1), ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_THAT(NearestNics({}, gpus, 1), IsEmpty());
}

}  // namespace
}  // namespace weightcast::topology
