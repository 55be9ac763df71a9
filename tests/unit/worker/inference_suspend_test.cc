#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/worker/rank.h"

// Sleep: nothing can be written, read or served between Suspended and the next Register.

namespace weightcast::worker {
namespace {

using protocol::EngineState;
using protocol::Landing;
using ::testing::HasSubstr;

/// A rank that serves version 1.
Rank Serving(Landing landing) {
  Rank rank(landing);
  rank.Do(WaitCalled{});
  rank.Fill(1, 1);
  rank.Do(protocol::Commit{Update(1)});
  if (landing == Landing::kShadow) rank.Do(SwitchRun{.update = Update(1)});
  rank.Do(protocol::Serve{Update(1)});
  EXPECT_EQ(rank.state.served, Number(1));
  return rank;
}

class InferenceSuspend : public testing::TestWithParam<Landing> {};
INSTANTIATE_TEST_SUITE_P(Landings, InferenceSuspend, testing::Values(Landing::kInPlace, Landing::kShadow));

TEST_P(InferenceSuspend, NothingIsServedOrGrantedAsleep) {
  Rank rank = Serving(GetParam());
  rank.Do(SuspendCalled{});
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_TRUE(rank.Sent<protocol::Suspended>());
  EXPECT_EQ(rank.state.served.number, -1);
  EXPECT_EQ(rank.state.state, EngineState::kSuspended);
  EXPECT_EQ(VersionToLend(rank.state).number, -1);
  rank.Do(protocol::GrantRequest{Update(2), Number(2)});
  EXPECT_TRUE(rank.actions.empty()) << "it was sent before Suspended came there";
  rank.Do(BeginCalled{});
  EXPECT_THAT(rank.Answer().message(), HasSubstr("call resume first"));
  rank.Do(WaitCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument);
  rank.Do(SuspendCalled{});
  EXPECT_TRUE(rank.Answer().ok()) << "twice is harmless";
}

TEST_P(InferenceSuspend, WhatWasServedIsServedOnOnlyIfItIsIntact) {
  for (const bool intact : {true, false}) {
    Rank rank = Serving(GetParam());
    rank.Do(SuspendCalled{});
    rank.Do(SuspendCalled{});
    rank.Do(RegisterCalled{.landing = GetParam(), .same_memory = intact});
    EXPECT_TRUE(rank.Answer().ok());
    EXPECT_TRUE(rank.Action<SendRegistration>());
    EXPECT_EQ(rank.state.served.number, intact ? 1 : -1);
    EXPECT_EQ(rank.state.state, intact ? EngineState::kServing : EngineState::kJoining);
    rank.Do(PlanArrived{2});
    rank.Do(PlanReady{2});
    rank.Do(BeginCalled{});
    rank.Do(protocol::GrantRequest{Update(2, 2), Number(2)});
    EXPECT_TRUE(rank.Action<OpenGrants>());
  }
}

TEST_P(InferenceSuspend, NotBetweenBeginAndFinish) {
  Rank rank = Serving(GetParam());
  rank.Do(BeginCalled{});
  rank.Do(SuspendCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument);
  EXPECT_FALSE(rank.Sent<protocol::Suspended>());
  EXPECT_EQ(rank.state.served, Number(1));
}

TEST_P(InferenceSuspend, AnotherSessionLearnsOfItAtOnce) {
  Rank rank = Serving(GetParam());
  rank.Do(SuspendCalled{});
  rank.Do(protocol::Welcome{.term = {.number = 2, .id = 8}, .run = {.number = 1}, .lease_seconds = 5});
  EXPECT_TRUE(rank.Sent<protocol::Suspended>());
  EXPECT_FALSE(rank.Action<SendRegistration>());
}

TEST_P(InferenceSuspend, WaitsForThoseWhoReadTheMemory) {
  Rank rank = Serving(GetParam());
  rank.Do(MemoryLent{});
  rank.Do(SuspendCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kUnavailable);
  EXPECT_EQ(rank.state.served, Number(1));
  rank.Do(MemoryFree{});
  rank.Do(SuspendCalled{});
  EXPECT_TRUE(rank.Sent<protocol::Suspended>());
}

TEST(InferenceSuspendShadow, AnUpdateUnderWayIsFencedFirst) {
  Rank rank = Serving(Landing::kShadow);
  rank.Do(protocol::GrantRequest{Update(2), Number(2)});
  rank.Do(GrantsOpened{Update(2), {}});
  rank.Do(SuspendCalled{});
  EXPECT_TRUE(rank.Sent<protocol::Failed>());
  EXPECT_TRUE(rank.Action<RevokeGrants>());
  EXPECT_FALSE(rank.Action<AnswerCall>());
  EXPECT_FALSE(rank.Sent<protocol::Suspended>()) << "bytes may still land";
  rank.Do(CallExpired{});
  EXPECT_EQ(rank.Answer().code(), Code::kFenced);
  EXPECT_EQ(rank.state.served, Number(1)) << "the live tensors are untouched, and it is not asleep";
  rank.Do(SuspendCalled{});
  EXPECT_FALSE(rank.Action<AnswerCall>());
  rank.Do(GrantsFenced{Update(2)});
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_TRUE(rank.Sent<protocol::Suspended>());
  EXPECT_EQ(rank.state.step, Step::kNone);
}

TEST(InferenceSuspendShadow, ABufferThatIsHeldDoesNotKeepTheEngineAwake) {
  Rank rank = Serving(Landing::kShadow);
  rank.Do(protocol::GrantRequest{Update(2), Number(2)});
  rank.Do(GrantsOpened{Update(2), {}});
  rank.Do(SuspendCalled{});
  rank.Do(SpareSetAside{Update(2)});
  EXPECT_FALSE(rank.Action<SendRegistration>()) << "nothing is registered while it sleeps";
  EXPECT_TRUE(rank.Sent<protocol::Suspended>());
  EXPECT_TRUE(rank.Answer().ok());
}

TEST(InferenceSuspendShadow, WhatHasWhollyComeIsGivenUpToo) {
  Rank rank = Serving(Landing::kShadow);
  rank.Fill(2, 2);
  ASSERT_EQ(rank.state.step, Step::kReady);
  rank.Do(SuspendCalled{});
  EXPECT_TRUE(rank.Sent<protocol::Failed>());
  EXPECT_TRUE(rank.Sent<protocol::Suspended>());
  EXPECT_TRUE(rank.Answer().ok());
}

TEST(InferenceSuspendShadow, ALostSourceIsWaitedForNoLonger) {
  Rank rank = Serving(Landing::kShadow);
  rank.Do(protocol::GrantRequest{Update(2), Number(2)});
  rank.Do(GrantsOpened{Update(2), {}});
  rank.Do(SourceLost{Update(2), kDead, 1});
  rank.Do(SuspendCalled{});
  EXPECT_FALSE(rank.Action<AnswerCall>());
  rank.Do(GrantsFenced{Update(2)});
  EXPECT_TRUE(rank.Sent<protocol::Suspended>());
}

}  // namespace
}  // namespace weightcast::worker
