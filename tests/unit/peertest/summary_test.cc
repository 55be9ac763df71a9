#include "peertest/summary.h"

#include <gtest/gtest.h>

namespace weightcast::peertest {
namespace {

TEST(Summary, OfNothingIsZero) {
  const Latency none = Summarise({}, 3);
  EXPECT_EQ(none.samples, 0);
  EXPECT_EQ(none.lost, 3);
  EXPECT_EQ(none.p99, 0);
  EXPECT_EQ(MedianOf({}), 0);
}

TEST(Summary, HasQuantilesAndJitter) {
  std::vector<double> times;
  for (int i = 0; i < 100; ++i) times.push_back(i % 2 == 0 ? 1 : 2);
  times.push_back(50);
  const Latency latency = Summarise(times);
  EXPECT_EQ(latency.samples, 101);
  EXPECT_EQ(latency.p50, 2);
  EXPECT_EQ(latency.p99, 2);
  EXPECT_EQ(latency.most, 50);
  EXPECT_DOUBLE_EQ(latency.jitter, (99.0 + 48.0) / 100);
}

TEST(Summary, MedianOfAnEvenNumberIsBetween) { EXPECT_EQ(MedianOf({4, 1, 3, 2}), 2.5); }

}  // namespace
}  // namespace weightcast::peertest
