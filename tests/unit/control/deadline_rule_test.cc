#include "control/deadline_rule.h"

#include "control/deadline_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

using ::testing::_;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Return;

class DeadlineRuleTest : public RuleBench {
 protected:
  DeadlineRuleTest() : group(Of(Add("a", 0)).group), engine{.group = group} {
    ON_CALL(engines, Of(group)).WillByDefault([this] { return takes_part ? &engine : nullptr; });
  }

  GroupId group;
  EngineProgress engine;
  bool takes_part = true;
  DeadlineState state;
  DeadlineRule rule{context, state};
};

TEST_F(DeadlineRuleTest, WhoIsLateForOneUpdateHasNoNewTimeInTheNext) {
  rule.BeginGrants(group);
  EXPECT_FALSE(rule.IsOverdue(group));
  EXPECT_EQ(Done<SetTimer>().at(0).after, config.grant_timeout);
  rule.Close();
  rule.BeginGrants(group);
  EXPECT_TRUE(rule.IsOverdue(group));
  EXPECT_EQ(Done<SetTimer>().size(), 1U);
}

TEST_F(DeadlineRuleTest, AHeldVersionIsWaitedForALeaseFirst) {
  fresh = false;
  rule.BeginGrants(group);
  EXPECT_EQ(Done<SetTimer>().at(0).after, config.lease);
  EXPECT_CALL(engines, LoseRank).Times(0);
  rule.OnStepTimer(group);
  EXPECT_TRUE(rule.IsOverdue(group));
  EXPECT_EQ(Done<SetTimer>().at(1).after, config.grant_timeout);
}

TEST_F(DeadlineRuleTest, TheRankThatIsMissingIsNamed) {
  const Worker& rank = Of(roster.FindGroup(group)->ranks[0]);
  engine.step = EngineStep::kWriting;
  EXPECT_CALL(ranks, MissingAt(group, RankStep::kReady)).WillOnce(Return(&rank));
  EXPECT_CALL(
      engines,
      LoseRank(group, Property(&Status::message, HasSubstr("engine a rank 0 has not received")), &rank));
  rule.OnStepTimer(group);
}

TEST_F(DeadlineRuleTest, OfACommandTheControlIsToBlame) {
  engine.step = EngineStep::kHalting;
  EXPECT_CALL(commands, TimedOut).WillOnce(Return(Status(Code::kTimedOut, "no answer")));
  EXPECT_CALL(engines, CommandFailed(group, _));
  rule.OnStepTimer(group);
}

TEST_F(DeadlineRuleTest, TheTimeToGrantEndsWithALossOutsideAnUpdate) {
  rule.BeginGrants(group);
  rule.Lose(group);
  EXPECT_TRUE(rule.IsGranting(group)) << "the update handles the loss";
  takes_part = false;
  rule.Lose(group);
  EXPECT_FALSE(rule.IsGranting(group));
  EXPECT_EQ(Done<CancelTimer>().size(), 1U);
}

}  // namespace
}  // namespace weightcast::control
