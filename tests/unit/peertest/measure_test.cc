#include "peertest/measure.h"

#include <gtest/gtest.h>

namespace weightcast::peertest {
namespace {

TEST(NextPings, AreAllThatAreWantedInFewRounds) {
  uint32_t done = 0;
  int rounds = 0;
  for (uint32_t round = 30; (round = NextPings(5000 - done, round, 0.1)) > 0; ++rounds) done += round;
  EXPECT_EQ(done, 5000U);
  EXPECT_LE(rounds, 5);
}

TEST(NextPings, EndWithTheTimeThoughManyAreLeft) {
  EXPECT_EQ(NextPings(4970, 30, 0), 0U);
  EXPECT_EQ(NextPings(4970, 30, -0.5), 0U);
}

TEST(NextPings, AreFewWhereOneLossTakesASecond) {
  constexpr double kMean = 0.002 * 1.07;  // Two exchanges in a thousand wait for a time-out.
  constexpr double kSeconds = 0.5;
  uint32_t done = 30;
  for (uint32_t round = 30; (round = NextPings(5000 - done, round, kSeconds - kMean * done)) > 0;)
    done += round;
  EXPECT_GT(done, 100U);
  EXPECT_LT(kMean * done, 4 * kSeconds);
}

}  // namespace
}  // namespace weightcast::peertest
