#include "control/steering_rule.h"

#include "control/steering_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

using protocol::Move;
using ::testing::_;
using Answer = Steering::Answer;

class SteeringRuleTest : public RuleBench {
 protected:
  SteeringRuleTest() { Add("a", 0); }
  const Group& Controlled() {
    Group& group = roster.Change(GroupOf("a"));
    group.controlled = true;
    roster.SetControl(group, {.session = 50, .incarnation = 1});
    return group;
  }

  SteeringState state;
  SteeringRule rule{context, state};
};

TEST_F(SteeringRuleTest, WithoutAControlEverythingIsDone) {
  EXPECT_EQ(rule.Ask(GroupOf("a"), Move::kPause, {}), Answer::kDone);
  roster.Change(GroupOf("a")).controlled = true;
  EXPECT_EQ(rule.Ask(GroupOf("a"), Move::kPause, {}), Answer::kGone);
  EXPECT_TRUE(actions.empty());
}

TEST_F(SteeringRuleTest, AMoveIsOrderedOnceAndDoneWhenAnswered) {
  const Group& group = Controlled();
  EXPECT_EQ(rule.Ask(group, Move::kPause, {}), Answer::kAwaited);
  EXPECT_EQ(rule.Ask(group, Move::kPause, {}), Answer::kAwaited);
  EXPECT_EQ(Sent<protocol::Steer>().size(), 1U);
  EXPECT_EQ(Done<SetTimer>().size(), 2U) << "each who waits has the whole time";
  EXPECT_CALL(engines, Steered(group.id));
  rule.OnMessage(group, protocol::Steered{.order = 1, .status = {}});
  EXPECT_EQ(rule.Ask(group, Move::kPause, {}), Answer::kDone);
}

TEST_F(SteeringRuleTest, AnAnswerToAnEarlierOrderIsDropped) {
  const Group& group = Controlled();
  rule.Ask(group, Move::kPause, {});
  rule.Ask(group, Move::kSettle, version);
  EXPECT_CALL(engines, Steered).Times(0);
  rule.OnMessage(group, protocol::Steered{.order = 1, .status = {}});
  EXPECT_EQ(rule.Ask(group, Move::kSettle, version), Answer::kAwaited);
}

TEST_F(SteeringRuleTest, WhoHasNotAnsweredInTimeIsOverdueUntilItDoes) {
  const Group& group = Controlled();
  rule.Ask(group, Move::kPause, {});
  EXPECT_TRUE(rule.Overdue(group).ok());
  EXPECT_EQ(rule.TimedOut(group).code(), Code::kTimedOut);
  EXPECT_EQ(rule.Overdue(group).code(), Code::kTimedOut);
  EXPECT_CALL(engines, SteerFailed(group.id, _));
  rule.OnMessage(group, protocol::Steered{.order = 1, .status = {Code::kInternal, "no"}});
  EXPECT_TRUE(rule.Overdue(group).ok());
  EXPECT_EQ(last_error.code(), Code::kInternal);
}

TEST_F(SteeringRuleTest, ANewControlHasNoOrders) {
  const Group& group = Controlled();
  rule.Ask(group, Move::kPause, {});
  EXPECT_CALL(planning, Unplan(group.id, false));
  rule.OnGone(group, {Code::kPeerDead, "gone"});
  EXPECT_EQ(state, SteeringState{});
  EXPECT_EQ(group.control.session, 0U);
}

}  // namespace
}  // namespace weightcast::control
