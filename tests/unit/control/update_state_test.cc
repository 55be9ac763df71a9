#include "control/update_state.h"

#include <gtest/gtest.h>

namespace weightcast::control {
namespace {

TEST(UpdateState, CountsStepsOfRanksAndEngines) {
  UpdateState update;
  update.targets.push_back({.group = 2, .reason = {}});
  update.targets.push_back({.group = 1, .reason = {}});
  update.receivers = {{.session = 9, .group = 1}, {.session = 5, .group = 2}, {.session = 7, .group = 2}};
  update.Index();
  Target& target = *update.TargetOf(2);
  EXPECT_EQ(update.RanksOf(target).size(), 2U);
  EXPECT_EQ(update.ungranted(), 2U);
  update.Move(*update.ReceiverOf(5), RankStep::kGranted);
  EXPECT_FALSE(UpdateState::AllAt(target, RankStep::kGranted));
  update.Move(*update.ReceiverOf(7), RankStep::kReady);
  EXPECT_TRUE(UpdateState::AllAt(target, RankStep::kGranted));
  EXPECT_FALSE(UpdateState::AllAt(target, RankStep::kReady));
  update.Move(target, EngineStep::kWriting);
  EXPECT_EQ(update.ungranted(), 1U);
  EXPECT_EQ(update.Before(EngineStep::kWriting), 1U);
  update.Move(target, EngineStep::kGranting, 1);
  EXPECT_EQ(update.ungranted(), 1U) << "the next part keeps nobody waiting";
  update.Move(target, EngineStep::kOut);
  update.Move(*update.TargetOf(1), EngineStep::kDone);
  EXPECT_TRUE(update.AllOver());
  EXPECT_EQ(update.TargetOf(3), nullptr);
  EXPECT_EQ(update.ReceiverOf(6), nullptr);
}

}  // namespace
}  // namespace weightcast::control
