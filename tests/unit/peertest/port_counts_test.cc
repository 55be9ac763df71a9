#include "peertest/port_counts.h"

#include <gtest/gtest.h>

namespace weightcast::peertest {
namespace {

TEST(PortCounts, AreWhatBothReadingsHave) {
  const auto counted =
      CountedBetween({{"rxe0:1", 100, 1}, {"rxe1:1", 50, 0}, {"rxe2:1", 70, 9}, {"gone:1", 1, 1}},
                     {{"rxe0:1", 400, 8}, {"rxe1:1", 50, 0}, {"rxe2:1", 90, 2}, {"new:1", 5, 5}});
  ASSERT_EQ(counted.size(), 1U);  // rxe1 sent nothing, rxe2 began again.
  EXPECT_EQ(counted[0].name, "rxe0:1");
  EXPECT_EQ(counted[0].packets, 300);
  EXPECT_EQ(counted[0].repeats, 7);
}

}  // namespace
}  // namespace weightcast::peertest
