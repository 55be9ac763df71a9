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

TEST(Rounds, OfFewerThanTwoHostsAreNone) {
  EXPECT_TRUE(RoundsOf(0).empty());
  EXPECT_TRUE(RoundsOf(1).empty());
}

}  // namespace
}  // namespace weightcast::peertest
