#include "control/rank_state.h"

#include <gtest/gtest.h>

namespace weightcast::control {
namespace {

TEST(RanksState, CountsStepsOfRanks) {
  RanksState ranks;
  ranks.receivers = {{.session = 9, .group = 1}, {.session = 5, .group = 2}, {.session = 7, .group = 2}};
  ranks.Index();
  EXPECT_EQ(ranks.RanksOf(2).size(), 2U);
  EXPECT_EQ(ranks.RanksOf(3).size(), 0U);
  ranks.Move(*ranks.Of(SessionId{5}), RankStep::kGranted);
  EXPECT_FALSE(ranks.AllAt(2, RankStep::kGranted));
  ranks.Move(*ranks.Of(SessionId{7}), RankStep::kReady);
  EXPECT_TRUE(ranks.AllAt(2, RankStep::kGranted));
  EXPECT_FALSE(ranks.AllAt(2, RankStep::kReady));
  EXPECT_FALSE(ranks.AllAt(1, RankStep::kGranted));
  EXPECT_EQ(ranks.Of(SessionId{6}), nullptr);
}

}  // namespace
}  // namespace weightcast::control
