#include "control/plan_rule.h"

#include "control/plan_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

using ::testing::ElementsAre;
using ::testing::Return;

class PlanRuleTest : public RuleBench {
 protected:
  PlanRuleTest() : trainer(Add("", 0)), a(Add("a", 0)), b(Add("b", 0)) {}
  void MakePlan() {
    rule.Replan();
    rule.OnPlanTimer();
    rule.OnPlanMade(state.epoch);
  }
  void Prepare() {
    for (const SessionId session : {trainer, a, b}) rule.OnPrepared(Of(session), {.epoch = state.epoch});
  }

  SessionId trainer, a, b;
  PlanState state;
  PlanRule rule{context, state};
};

TEST_F(PlanRuleTest, APlanIsPreparedWhenAllItsMembersAre) {
  MakePlan();
  EXPECT_EQ(rule.plan().phase, PlanPhase::kPreparing);
  EXPECT_THAT(state.sources, ElementsAre(trainer));
  EXPECT_THAT(state.destinations, ElementsAre(a, b));
  Prepare();
  EXPECT_EQ(rule.plan().phase, PlanPhase::kPrepared);
  EXPECT_TRUE(rule.Of(Of(a).group).planned);
}

TEST_F(PlanRuleTest, APlanOfAnotherEpochIsDropped) {
  rule.Replan();
  rule.OnPlanTimer();
  EXPECT_FALSE(rule.OnPlanMade(state.epoch + 1));
  EXPECT_FALSE(rule.OnPlanFailed({.epoch = state.epoch + 1, .reason = {}, .concerned = {}}));
  EXPECT_EQ(rule.plan().phase, PlanPhase::kPlanning);
}

TEST_F(PlanRuleTest, APlanForARepairHasOnlyItsMembersAndVoidsTheNext) {
  MakePlan();
  Prepare();
  EXPECT_EQ(rule.PlanRepair({a}, /*from_engines=*/true, {Of(b).group}), 2U);
  EXPECT_THAT(state.sources, ElementsAre(a));
  EXPECT_THAT(state.destinations, ElementsAre(b));
  EXPECT_FALSE(rule.plan().stale);
  rule.EndPartial();
  EXPECT_TRUE(rule.plan().stale);
}

TEST_F(PlanRuleTest, ARepairIsToldWhenItsPlanFails) {
  rule.PlanRepair({a}, /*from_engines=*/true, {Of(b).group});
  EXPECT_CALL(repair, IsPlanned).WillRepeatedly(Return(true));
  EXPECT_CALL(repair, PlanFailed);
  EXPECT_CALL(membership, Refuse(testing::A<const std::vector<SessionId>&>(), testing::_)).Times(0);
  EXPECT_TRUE(rule.OnPlanFailed({.epoch = 1, .reason = {Code::kInvalidArgument, "holes"}, .concerned = {}}));
}

TEST_F(PlanRuleTest, AnEngineThatIsLostForgetsThatItCouldNotBeReached) {
  const GroupId group = Of(b).group;
  state.groups.Edit(group) = {.in_plan = 1, .planned = true, .in_full_plan = true, .left_out = true};
  rule.Lose(Of(b));
  EXPECT_EQ(state.groups.Of(group), GroupPlan{});
  ASSERT_EQ(Done<CancelTimer>().size(), 1U);
  EXPECT_EQ(Done<CancelTimer>()[0].timer, (TimerId{TimerKind::kRetry, group}));
}

}  // namespace
}  // namespace weightcast::control
