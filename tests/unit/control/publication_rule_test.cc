#include "control/publication_rule.h"

#include "control/publication_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

class PublicationRuleTest : public RuleBench {
 protected:
  PublicationRuleTest() : first(Add("", 0, 2)), second(Add("", 1)) {}
  void Publish(SessionId trainer, int64_t number, bool hold = false) {
    rule.OnPublished(Of(trainer), {.number = number, .run = run, .hold = hold});
  }

  SessionId first;
  SessionId second;
  PublicationState state;
  PublicationRule rule{context, state};
};

TEST_F(PublicationRuleTest, TheCatchUpTimerRunsWhileOnlySomeHavePublished) {
  Publish(first, 1);
  rule.ArmCatchUp();
  ASSERT_EQ(Done<SetTimer>().size(), 1U);
  EXPECT_EQ(Done<SetTimer>()[0].timer.kind, TimerKind::kCatchUp);
  Publish(second, 1);
  rule.ArmCatchUp();
  EXPECT_EQ(Done<CancelTimer>().size(), 1U);
}

TEST_F(PublicationRuleTest, WhatWasWithdrawnIsAnsweredAtOnceWhenItComesLate) {
  Publish(first, 1);
  Publish(first, 2);
  EXPECT_EQ(Sent<protocol::Superseded>().size(), 1U);
  Publish(second, 1);
  EXPECT_EQ(Sent<protocol::Superseded>().size(), 2U);
  EXPECT_EQ(Of(second).offered, -1);
}

TEST_F(PublicationRuleTest, AHeldVersionIsOfferedOnWhenThereIsNoEngine) {
  plan.epoch = 1;
  engine_loss = {Code::kPeerDead, "the last engine died"};
  Publish(first, 1, /*hold=*/true);
  Publish(second, 1, /*hold=*/false);
  rule.FailHopeless();
  EXPECT_EQ(Sent<protocol::Done>().size(), 2U);
  EXPECT_EQ(Of(first).offered, 1);
  EXPECT_EQ(Of(second).offered, -1);
  EXPECT_EQ(roster.offers().waiting(), 0U);
}

TEST_F(PublicationRuleTest, CancelOfAnotherRunAbortsTheUpdateAndKeepsTheNumber) {
  open = true;
  version = {.run = 9, .number = 3, .origin = 77};
  trainers = {first};
  EXPECT_CALL(updates, Abort);
  rule.OnCancel(Of(first), {.number = 3});
  EXPECT_EQ(state.withdrawn.number, -1);
}

TEST_F(PublicationRuleTest, TheEndOfARunFreesItsNumbers) {
  Publish(first, 7);
  rule.EndRun({Code::kUnavailable, "a new run"});
  EXPECT_EQ(Sent<protocol::Done>().size(), 1U);
  EXPECT_EQ(state, PublicationState{});
  EXPECT_EQ(Of(first).offered, -1);
}

}  // namespace
}  // namespace weightcast::control
