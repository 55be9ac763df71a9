#include "control/opening_rule.h"

#include "control/opening_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Return;

class OpeningRuleTest : public RuleBench {
 protected:
  OpeningRuleTest() : trainer(Add("", 0)), a(Add("a", 0)), b(Add("b", 0)) {
    plan.phase = PlanPhase::kPrepared;
    plan.stale = false;
    ON_CALL(planning, Of).WillByDefault(Return(GroupFacts{.planned = true}));
    ON_CALL(updates, Open).WillByDefault([this](NewUpdate update) { opened.push_back(std::move(update)); });
  }
  void Offer(int64_t number, bool waiting, bool hold) {
    auto edit = roster.Change(Of(trainer));
    edit->offered = number;
    edit->waiting = waiting;
    edit->hold = hold;
  }

  SessionId trainer, a, b;
  std::vector<NewUpdate> opened;
  OpeningState state;
  OpeningRule rule{context, state};
};

TEST_F(OpeningRuleTest, AnEngineThatWasNotAbleTakesNoPartAndIsNamed) {
  Offer(5, /*waiting=*/true, /*hold=*/false);
  ON_CALL(commands, Overdue).WillByDefault([](const Group& group) {
    return group.name == "a" ? Status(Code::kTimedOut, "no answer") : Status::Ok();
  });
  rule.TryOpen();
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_THAT(opened[0].engines, ElementsAre(Of(b).group));
  EXPECT_EQ(opened[0].absent.at(0).engine, "a");
  EXPECT_EQ(opened[0].version, (Version{.run = 1, .number = 5, .origin = 77}));
}

TEST_F(OpeningRuleTest, AHeldVersionIsTriedThreeTimesUnlessTheEngineIsAnother) {
  Offer(5, /*waiting=*/false, /*hold=*/true);
  for (const GroupId group : {Of(a).group, Of(b).group})
    for (int i = 0; i < 3; ++i)
      rule.NoteEnd({.group = group, .reason = {Code::kTimedOut, "late"}, .rank = 0}, version);
  rule.TryOpen();
  EXPECT_THAT(opened, IsEmpty());
  EXPECT_TRUE(rule.IsAtFault(Of(a).group, version));
  rule.ForgetFailures(Of(a).group);
  rule.TryOpen();
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_THAT(opened[0].engines, ElementsAre(Of(a).group));
}

TEST_F(OpeningRuleTest, AFenceIsWaitedForUntilItsTimer) {
  Offer(5, /*waiting=*/true, /*hold=*/false);
  roster.Change(Of(a))->fencing = id;
  rule.TryOpen();
  EXPECT_THAT(opened, IsEmpty());
  EXPECT_TRUE(state.fence_timer);
  rule.OnFenceTimer();
  rule.TryOpen();
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_THAT(opened[0].engines, ElementsAre(Of(b).group));
}

TEST_F(OpeningRuleTest, NothingOpensBeforeThePlanIsPrepared) {
  Offer(5, /*waiting=*/true, /*hold=*/false);
  plan.stale = true;
  rule.TryOpen();
  plan.stale = false;
  plan.phase = PlanPhase::kPreparing;
  rule.TryOpen();
  EXPECT_THAT(opened, IsEmpty());
}

}  // namespace
}  // namespace weightcast::control
