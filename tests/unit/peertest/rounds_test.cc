#include "peertest/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace weightcast::peertest {
namespace {

TEST(Rounds, HaveEachPairOnceAndNoHostTwice) {
  for (size_t hosts = 2; hosts <= 33; ++hosts) {
    const auto rounds = RoundsOf(hosts);
    EXPECT_EQ(rounds.size(), hosts % 2 == 0 ? hosts - 1 : hosts);
    std::set<HostPair> seen;
    for (const auto& round : rounds) {
      std::set<size_t> busy;
      EXPECT_EQ(round.size(), hosts / 2);
      for (const auto& [a, b] : round) {
        EXPECT_LT(std::max(a, b), hosts);
        EXPECT_NE(a, b);
        EXPECT_TRUE(busy.insert(a).second) << hosts;
        EXPECT_TRUE(busy.insert(b).second) << hosts;
        EXPECT_TRUE(seen.insert(std::minmax(a, b)).second) << hosts;
      }
    }
    EXPECT_EQ(seen.size(), hosts * (hosts - 1) / 2);
  }
}

TEST(Rounds, OfSomePairsHaveEachOnceAndNoHostTwice) {
  const std::vector<HostPair> pairs = {{0, 1}, {0, 2}, {2, 3}, {3, 0}, {4, 5}};
  std::set<HostPair> seen;
  const auto rounds = RoundsOf(pairs);
  EXPECT_EQ(rounds.size(), 3U);  // Host 0 has three.
  for (const auto& round : rounds) {
    std::set<size_t> busy;
    for (const auto& [a, b] : round) {
      EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second);
      EXPECT_TRUE(seen.insert({a, b}).second);
    }
  }
  EXPECT_EQ(seen, std::set<HostPair>(pairs.begin(), pairs.end()));
}

TEST(Rounds, OfFewerThanTwoHostsAreNone) {
  EXPECT_TRUE(RoundsOf(0).empty());
  EXPECT_TRUE(RoundsOf(1).empty());
}

}  // namespace
}  // namespace weightcast::peertest
