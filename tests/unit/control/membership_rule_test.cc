#include "control/membership_rule.h"

#include "control/membership_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Return;

class MembershipRuleTest : public RuleBench {
 protected:
  MembershipRuleTest() {
    EXPECT_CALL(planning, Of).WillRepeatedly([this](GroupId) { return facts; });
  }

  GroupFacts facts;
  MembershipState state;
  MembershipRule rule{context, state};
};

TEST_F(MembershipRuleTest, TheJoinTimerRunsUntilTheGroupIsPlanned) {
  const SessionId rank = Add("a", 0, 2);
  const GroupId group = Of(rank).group;
  rule.ArmJoinTimers();
  EXPECT_TRUE(state.join_timers.Of(group));
  roster.touched().Clear();
  facts.planned = true;
  rule.ArmJoinTimers();
  EXPECT_TRUE(state.join_timers.Of(group)) << "a group that nothing has touched is not looked at";
  roster.touched().Add(group);
  rule.ArmJoinTimers();
  EXPECT_FALSE(state.join_timers.Of(group));
}

TEST_F(MembershipRuleTest, AGroupThatIsLeftOutOfPlansHasNoTimeLimit) {
  const SessionId rank = Add("a", 0);
  facts.left_out = true;
  rule.ArmJoinTimers();
  EXPECT_FALSE(state.join_timers.Of(Of(rank).group));
}

TEST_F(MembershipRuleTest, WhoIsMissingIsNamedToThoseWhoWait) {
  const SessionId rank = Add("a", 1, 3);
  rule.ArmJoinTimers();
  rule.OnJoinTimer(Of(rank).group);
  ASSERT_EQ(Done<Refuse>().size(), 1U);
  EXPECT_THAT(Done<Refuse>()[0].reason.message(), HasSubstr("missing: engine a rank 0, 2 of 3"));
  EXPECT_EQ(roster.Find(rank), nullptr);
}

TEST_F(MembershipRuleTest, EveryRuleHearsOfALossInTurn) {
  const SessionId rank = Add("a", 0);
  const SessionId other = Add("b", 0);
  {
    const ::testing::InSequence order;
    EXPECT_CALL(planning, Lose).WillOnce([&](const Worker& worker) {
      EXPECT_NE(roster.Find(worker.session), nullptr) << "the plan needs its group as it was";
    });
    EXPECT_CALL(deadlines, Lose(Of(rank).group));
    EXPECT_CALL(updates, Lose).WillOnce([&](const Worker& worker, const Status&) {
      EXPECT_EQ(roster.Find(worker.session), nullptr);
    });
  }
  rule.OnGone(Of(rank), {Code::kPeerDead, "no heartbeats"});
  EXPECT_EQ(GroupOf("a").loss.code(), Code::kPeerDead);
  EXPECT_EQ(rule.engine_loss().code(), Code::kPeerDead);
  EXPECT_THAT(Done<SendAll>().at(0).to, ElementsAre(other));
}

TEST_F(MembershipRuleTest, ARegistrationWithARunThatIsTooHighEndsTheSession) {
  const SessionId rank = Add("a", 0);
  EXPECT_CALL(runs, Check(testing::A<const protocol::Run&>()))
      .WillRepeatedly(Return(Status(Code::kInvalidArgument, "too high")));
  EXPECT_CALL(updates, BeginAgain).Times(0);
  rule.OnRegister(Of(rank), {});
  EXPECT_EQ(roster.Find(rank), nullptr);
}

}  // namespace
}  // namespace weightcast::control
