#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/worker/rank.h"

// What an inference rank does when an update is tried again from other sources.

namespace weightcast::worker {
namespace {

using protocol::EngineState;
using protocol::Landing;

const Status kNoHolder(Code::kPeerDead, "trainer 1 is lost and nobody else holds its bytes");

protocol::Abort Retry(const protocol::UpdateId& update) {
  return {.update = update, .reason = Status::Ok(), .started = true};
}
/// A rank whose user waits while a first attempt is being written.
Rank Writing(Landing landing, bool wait = true) {
  Rank rank(landing);
  if (wait) {
    rank.Do(WaitCalled{});
  } else {
    rank.Do(BeginCalled{});
    rank.Do(ReceiveCalled{});
  }
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(GrantsOpened{Update(1), {}});
  return rank;
}

TEST(InferenceRetry, TheCallWaitsOnForTheNextAttempt) {
  for (const auto landing : {Landing::kInPlace, Landing::kShadow}) {
    for (const bool wait : {true, false}) {
      Rank rank = Writing(landing, wait);
      rank.Do(Retry(Update(1)));
      EXPECT_TRUE(rank.Action<RevokeGrants>());
      EXPECT_FALSE(rank.Action<AnswerCall>());
      rank.Do(GrantsFenced{Update(1)});
      EXPECT_EQ(rank.Sent<protocol::Aborted>()->lost, landing == Landing::kInPlace);
      EXPECT_FALSE(rank.Action<AnswerCall>());
      rank.Do(protocol::Lost{{protocol::Role::kTrainer, "", 1}, kDead});
      EXPECT_FALSE(rank.Action<AnswerCall>()) << "the next attempt repairs the loss";
      rank.Do(PlanArrived{2});
      EXPECT_TRUE(rank.actions.empty());
      rank.Do(PlanReady{2});
      const auto again = Update(1, 2, 1);
      rank.Do(protocol::GrantRequest{again, Number(3)});
      EXPECT_TRUE(rank.Action<OpenGrants>()) << "the user is still in Begin";
      rank.Do(GrantsOpened{again, {}});
      rank.Do(Arrived{again, 1, 1});
      rank.Do(GrantsFenced{again});
      EXPECT_TRUE(rank.Sent<protocol::Ready>());
      rank.Do(protocol::Commit{again});
      if (landing == Landing::kShadow) rank.Do(SwitchRun{.update = again});
      if (!wait) {
        EXPECT_TRUE(rank.Answer().ok());
        rank.Do(FinishCalled{});
      }
      EXPECT_TRUE(rank.Sent<protocol::Committed>());
      rank.Do(protocol::Serve{again});
      EXPECT_TRUE(rank.Answer().ok());
      EXPECT_EQ(rank.state.served, Number(3));
    }
  }
}

TEST(InferenceRetry, WithoutAnotherHolderTheCallFailsAfterAll) {
  for (const bool wait : {true, false}) {
    for (const bool fenced_first : {true, false}) {
      Rank rank = Writing(Landing::kInPlace, wait);
      rank.Do(Retry(Update(1)));
      if (fenced_first) rank.Do(GrantsFenced{Update(1)});
      if (fenced_first) rank.Do(PlanArrived{2});
      rank.Do(protocol::Abort{Update(1), kNoHolder});
      if (fenced_first || !wait) {
        EXPECT_EQ(rank.Answer(), kNoHolder);
      }
      if (!fenced_first) {
        rank.Do(GrantsFenced{Update(1)});
      }
      if (!fenced_first && wait) {
        EXPECT_EQ(rank.Answer(), kNoHolder) << "Wait: not before the fence";
      }
      ASSERT_TRUE(rank.Sent<protocol::Aborted>());
      EXPECT_TRUE(rank.Sent<protocol::Aborted>()->lost);
      EXPECT_EQ(rank.state.last_error, kNoHolder);
      rank.Do(protocol::Abort{Update(1), kNoHolder});
      EXPECT_FALSE(rank.Action<AnswerCall>()) << "once is enough";
    }
  }
}

TEST(InferenceRetry, TheNextPhaseIsToldWhereNobodyWaited) {
  Rank rank(Landing::kShadow);
  rank.Do(BeginCalled{});
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(GrantsOpened{Update(1), {}});
  rank.Do(Retry(Update(1)));
  rank.Do(GrantsFenced{Update(1)});
  rank.Do(protocol::Abort{Update(1), kNoHolder});
  EXPECT_FALSE(rank.Action<AnswerCall>());
  rank.Do(ReceiveCalled{});
  EXPECT_EQ(rank.Answer(), kNoHolder);
}

TEST(InferenceRetry, ALostSourceIsTheControllersToJudge) {
  for (const bool wait : {true, false}) {
    Rank rank = Writing(Landing::kInPlace, wait);
    rank.Do(SourceLost{Update(1), kDead});
    EXPECT_TRUE(rank.Sent<protocol::Failed>());
    EXPECT_TRUE(rank.Action<RevokeGrants>());
    EXPECT_FALSE(rank.Action<AnswerCall>());
    rank.Do(GrantsFenced{Update(1)});
    EXPECT_TRUE(rank.actions.empty());
    Rank late = rank;
    late.Do(CallExpired{});
    EXPECT_EQ(late.Answer().code(), Code::kTimedOut) << "nobody writes any more";
    Rank other = rank;
    rank.Do(Retry(Update(1)));
    EXPECT_TRUE(rank.Sent<protocol::Aborted>());
    EXPECT_FALSE(rank.Action<AnswerCall>());
    other.Do(protocol::Abort{Update(1), kNoHolder});
    EXPECT_TRUE(other.Sent<protocol::Aborted>());
    EXPECT_EQ(other.Answer(), kDead) << "what it saw itself says more";
  }
}

TEST(InferenceRetry, WhoGivesUpWaitsForNobody) {
  Rank rank(Landing::kInPlace);
  rank.Do(BeginCalled{});
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(GrantsOpened{Update(1), {}});
  rank.Do(SourceLost{Update(1), kDead});
  rank.Do(GrantsFenced{Update(1)});
  rank.Do(AbortCalled{});
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_EQ(rank.state.user, UserPhase::kOutside);
  rank.Do(Retry(Update(1)));
  EXPECT_TRUE(rank.Sent<protocol::Aborted>()->lost);
}

TEST(InferenceRetry, TheNextAttemptMayComeBeforeTheFence) {
  Rank rank = Writing(Landing::kShadow);
  rank.Do(Retry(Update(1)));
  rank.Do(PlanArrived{2});
  rank.Do(PlanReady{2});
  const auto again = Update(1, 2, 1);
  rank.Do(protocol::GrantRequest{again, Number(3)});
  EXPECT_TRUE(rank.actions.empty());
  Rank hopeless = rank;
  rank.Do(GrantsFenced{Update(1)});
  EXPECT_FALSE(rank.Action<AnswerCall>());
  EXPECT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_TRUE(rank.Action<OpenGrants>());
  hopeless.Do(protocol::Abort{again, kNoHolder});
  EXPECT_EQ(hopeless.Sent<protocol::Aborted>()->update, again);
  hopeless.Do(GrantsFenced{Update(1)});
  EXPECT_EQ(hopeless.Answer(), kNoHolder);
}

TEST(InferenceRetry, ReceivedBytesAreNotTakenBackInSilence) {
  Rank rank(Landing::kInPlace);
  rank.Do(BeginCalled{});
  rank.Fill(1, 3);
  rank.Do(protocol::Commit{Update(1)});
  rank.Do(ReceiveCalled{});
  EXPECT_TRUE(rank.Answer().ok());
  rank.Do(Retry(Update(1)));
  EXPECT_TRUE(rank.Sent<protocol::Aborted>()->lost);
  rank.Do(FinishCalled{});
  const Status taken_back = rank.Answer();
  EXPECT_EQ(taken_back.code(), Code::kUnavailable);
  EXPECT_THAT(taken_back.message(), testing::HasSubstr(protocol::ToString(Update(1)) + " of version 3 "));
  rank.Do(ReceiveCalled{});
  EXPECT_FALSE(rank.Action<AnswerCall>()) << "the engine may go on from here";
}

TEST(InferenceRetry, ABreakBetweenTheAttemptsEndsTheCall) {
  Rank rank = Writing(Landing::kInPlace);
  rank.Do(Retry(Update(1)));
  rank.Do(GrantsFenced{Update(1)});
  Rank late = rank;
  rank.Do(SessionEnded{kNoHolder});
  EXPECT_EQ(rank.Answer(), kNoHolder);
  late.Do(CallExpired{});
  EXPECT_EQ(late.Answer().code(), Code::kTimedOut);
}

TEST(InferenceRetry, ASourceThatIsGoneBeforeTheGrantCostsNothing) {
  for (const bool again : {true, false}) {
    Rank rank(Landing::kInPlace);
    rank.Do(BeginCalled{});
    rank.Do(ReceiveCalled{});
    rank.Do(protocol::GrantRequest{Update(1), Number(3)});
    rank.Do(OpenFailed{Update(1), kDead, 2});
    EXPECT_EQ(rank.Sent<protocol::Failed>()->source, 2);
    EXPECT_FALSE(rank.Action<AnswerCall>()) << "another may have its bytes";
    rank.Do(protocol::Abort{.update = Update(1), .reason = again ? Status::Ok() : kDead, .started = false});
    EXPECT_FALSE(rank.Sent<protocol::Aborted>()->lost);
    EXPECT_EQ(rank.Action<AnswerCall>().has_value(), !again);
    if (!again) continue;
    rank.Do(PlanArrived{2});
    rank.Do(PlanReady{2});
    rank.Do(protocol::GrantRequest{Update(2, 2), Number(3)});
    EXPECT_TRUE(rank.Action<OpenGrants>());
  }
}

/// Serves version 3, and the writer of an aborted update 2 holds its spare buffer.
Rank HeldShadow() {
  Rank rank(Landing::kShadow);
  rank.Fill(1, 3);
  rank.Do(protocol::Commit{Update(1)});
  rank.Do(WaitCalled{});
  rank.Do(SwitchRun{.update = Update(1)});
  rank.Do(protocol::Serve{Update(1)});
  rank.Do(protocol::GrantRequest{Update(2), Number(4)});
  rank.Do(GrantsOpened{Update(2), {}});
  rank.Do(BeginCalled{});
  rank.Do(ReceiveCalled{});
  rank.Do(protocol::Abort{Update(2), kDead});
  return rank;
}

TEST(InferenceAside, ASpareBufferThatIsHeldIsSetAsideForAnother) {
  Rank rank = HeldShadow();
  EXPECT_EQ(rank.Answer(), kDead);
  rank.Do(AbortCalled{});
  EXPECT_TRUE(rank.Answer().ok()) << "nobody can touch the live tensors: the engine goes on at once";
  EXPECT_EQ(rank.state.served, Number(3));
  rank.Do(SpareSetAside{Update(1)});
  EXPECT_TRUE(rank.actions.empty()) << "of another update";
  rank.Do(SpareSetAside{Update(2)});
  EXPECT_TRUE(rank.Action<SendRegistration>()) << "the plan names the old buffer";
  ASSERT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_EQ(rank.Sent<protocol::Aborted>()->landed, Version{}) << "nothing has landed in the new one";
  EXPECT_EQ(rank.state.served, Number(3));
  EXPECT_EQ(rank.state.state, protocol::EngineState::kServing);
  rank.Do(protocol::GrantRequest{Update(3), Number(4)});
  EXPECT_TRUE(rank.actions.empty()) << "it was sent before the registration came there";
  rank.Do(GrantsFenced{Update(2)});
  EXPECT_TRUE(rank.actions.empty()) << "the fence of the old buffer is the runtime's affair";
  rank.Do(PlanArrived{2});
  rank.Do(PlanReady{2});
  rank.Do(protocol::GrantRequest{Update(4, 2), Number(4)});
  EXPECT_TRUE(rank.Action<OpenGrants>());
}

TEST(InferenceAside, ABufferThatWasFencedOrIsWaitedForIsNotSetAside) {
  Rank fenced = HeldShadow();
  fenced.Do(GrantsFenced{Update(2)});
  fenced.Do(SpareSetAside{Update(2)});
  EXPECT_TRUE(fenced.actions.empty());
  EXPECT_TRUE(fenced.state.prepared);

  Rank in_place(Landing::kInPlace);
  in_place.Do(BeginCalled{});
  in_place.Do(protocol::GrantRequest{Update(1), Number(3)});
  in_place.Do(GrantsOpened{Update(1), {}});
  in_place.Do(protocol::Abort{Update(1), kDead});
  in_place.Do(SpareSetAside{Update(1)});
  EXPECT_TRUE(in_place.actions.empty()) << "there is no other memory";
  EXPECT_EQ(in_place.state.step, Step::kAborting);
}

TEST(InferenceAside, ASourceThatWasLostIsStillDecidedUponAfterItsBufferWasSetAside) {
  Rank rank(Landing::kShadow);
  rank.Do(WaitCalled{});
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(GrantsOpened{Update(1), {}});
  rank.Do(SourceLost{Update(1), kDead, 0});
  rank.Do(SpareSetAside{Update(1)});
  EXPECT_TRUE(rank.Action<SendRegistration>());
  EXPECT_FALSE(rank.Action<AnswerCall>()) << "the controller has not said whether there is another source";
  EXPECT_FALSE(rank.Sent<protocol::Aborted>());
  rank.Do(protocol::Abort{.update = Update(1), .reason = kDead, .started = true});
  EXPECT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_EQ(rank.Answer(), kDead);
}

}  // namespace
}  // namespace weightcast::worker
