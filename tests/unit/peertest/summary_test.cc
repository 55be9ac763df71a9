#include "peertest/summary.h"

#include <gtest/gtest.h>

#include "base/statistics.h"

namespace weightcast::peertest {
namespace {

TEST(Summary, OfNothingIsZero) {
  const Latency none = Summarise({}, 3);
  EXPECT_EQ(none.samples, 0);
  EXPECT_EQ(none.lost, 3);
  EXPECT_EQ(none.p99, 0);
  EXPECT_EQ(Median({}), 0);
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
  EXPECT_EQ(latency.jitter_p50, 1);
}

TEST(Summary, MedianOfAnEvenNumberIsBetween) { EXPECT_EQ(Median({4, 1, 3, 2}), 2.5); }

TEST(Summary, KeepsTheBetterOfTwoMeasurementsInEachDirection) {
  PeerFacts facts;
  facts.transports = {{.name = "tcp",
                       .latency = {.samples = 9, .p50 = 1},
                       .out = {{1 << 20, 9, 1}},
                       .back = {{1 << 20, 9, 8}}},
                      {.name = "verbs", .error = "no answer"}};
  PeerFacts again = facts;
  again.transports[0].out[0].gbit = 7;
  again.transports[0].back[0].gbit = 2;
  again.transports[0].latency.p50 = 3;
  again.transports[1] = {.name = "verbs", .out = {{1 << 20, 9, 5}}};
  KeepBetter(facts, again);
  EXPECT_EQ(facts.transports[0].out[0].gbit, 7);
  EXPECT_EQ(facts.transports[0].back[0].gbit, 8);
  EXPECT_EQ(facts.transports[0].latency.p50, 1);
  EXPECT_EQ(facts.transports[1].error, "");
  EXPECT_EQ(facts.transports[1].out[0].gbit, 5);
  again.transports[0].error = "broken";
  again.transports[0].out[0].gbit = 100;
  KeepBetter(facts, again);
  EXPECT_EQ(facts.transports[0].out[0].gbit, 7);
}

}  // namespace
}  // namespace weightcast::peertest
