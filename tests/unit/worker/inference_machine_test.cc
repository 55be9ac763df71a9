#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/worker/rank.h"

namespace weightcast::worker {
namespace {

using protocol::EngineState;
using protocol::Landing;

TEST(InferenceMachine, InPlaceUpdateGoesThroughEveryStep) {
  Rank rank(Landing::kInPlace);
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  EXPECT_TRUE(rank.actions.empty()) << "no grant before the engine has paused";
  rank.Do(BeginCalled{});
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_TRUE(rank.Action<OpenGrants>());
  rank.Do(GrantsOpened{Update(1), {{.source = 0, .slot = 1, .id = 9}}});
  ASSERT_TRUE(rank.Sent<protocol::Granted>());
  EXPECT_EQ(rank.Sent<protocol::Granted>()->grants.size(), 1U);
  rank.Do(ReceiveCalled{});
  EXPECT_TRUE(rank.actions.empty());
  rank.Do(Arrived{Update(1), 100, 0.5});
  EXPECT_TRUE(rank.Action<RevokeGrants>());
  EXPECT_FALSE(rank.Sent<protocol::Ready>()) << "not ready before nothing can land any more";
  rank.Do(GrantsFenced{Update(1)});
  ASSERT_TRUE(rank.Sent<protocol::Ready>());
  EXPECT_EQ(rank.Sent<protocol::Ready>()->bytes, 100U);
  rank.Do(protocol::Commit{Update(1)});
  ASSERT_TRUE(rank.Answer().ok());
  EXPECT_EQ(rank.Action<AnswerCall>()->version, Number(3));
  EXPECT_EQ(rank.state.served, Version{}) << "not served before Serve";
  rank.Do(FinishCalled{});
  EXPECT_TRUE(rank.Sent<protocol::Committed>());
  rank.Do(protocol::Serve{Update(1)});
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_EQ(rank.state.served, Number(3));
  EXPECT_EQ(rank.state.state, EngineState::kServing);
  EXPECT_EQ(rank.state.user, UserPhase::kOutside);
}

TEST(InferenceMachine, ShadowServesTheOldVersionUntilItCopies) {
  Rank rank(Landing::kShadow);
  rank.Fill(1, 3);
  EXPECT_TRUE(rank.Sent<protocol::Ready>());
  rank.Do(protocol::Commit{Update(1)});
  EXPECT_TRUE(rank.actions.empty()) << "the engine is not paused";
  rank.Do(WaitCalled{});
  EXPECT_TRUE(rank.Action<RunSwitch>());
  rank.Do(SwitchRun{.update = Update(1)});
  EXPECT_TRUE(rank.Sent<protocol::Committed>());
  rank.Do(protocol::Serve{Update(1)});
  EXPECT_EQ(rank.Action<AnswerCall>()->version, Number(3));
  rank.Fill(2, 4);
  EXPECT_EQ(rank.state.served, Number(3)) << "bytes only land in the spare buffer";
  rank.Do(BeginCalled{});
  rank.Do(ReceiveCalled{});
  rank.Do(protocol::Commit{Update(2)});
  EXPECT_EQ(rank.state.served, Version{}) << "the copy has begun";
}

TEST(InferenceMachine, AbortOfAShadowUpdateKeepsTheOldVersion) {
  Rank rank(Landing::kShadow);
  rank.Fill(1, 3);
  rank.Do(protocol::Commit{Update(1)});
  rank.Do(WaitCalled{});
  rank.Do(SwitchRun{.update = Update(1)});
  rank.Do(protocol::Serve{Update(1)});
  rank.Do(protocol::GrantRequest{Update(2), Number(4)});
  rank.Do(GrantsOpened{Update(2), {}});
  rank.Do(protocol::Abort{Update(2), kDead});
  EXPECT_TRUE(rank.Action<RevokeGrants>());
  EXPECT_FALSE(rank.Sent<protocol::Aborted>()) << "only when fenced";
  rank.Do(GrantsFenced{Update(2)});
  ASSERT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_FALSE(rank.Sent<protocol::Aborted>()->lost);
  EXPECT_EQ(rank.state.served, Number(3));
  EXPECT_EQ(rank.state.state, EngineState::kServing);
  EXPECT_EQ(rank.state.last_error, kDead);
}

TEST(InferenceMachine, AbortOfAnInPlaceUpdateLosesTheVersionUnlessNothingWasGranted) {
  Rank rank(Landing::kInPlace);
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(protocol::Abort{Update(1), kDead});
  ASSERT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_FALSE(rank.Sent<protocol::Aborted>()->lost);
  EXPECT_EQ(rank.state.state, EngineState::kJoining);

  rank.Do(BeginCalled{});
  rank.Do(ReceiveCalled{});
  rank.Do(protocol::GrantRequest{Update(2), Number(3)});
  rank.Do(GrantsOpened{Update(2), {}});
  rank.Do(protocol::Abort{Update(2), kDead});
  EXPECT_EQ(rank.Answer(), kDead) << "the call ends at once, the memory is fenced later";
  rank.Do(GrantsFenced{Update(2)});
  ASSERT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_TRUE(rank.Sent<protocol::Aborted>()->lost);
  EXPECT_EQ(rank.state.state, EngineState::kFailed);

  rank.Do(ReceiveCalled{});
  EXPECT_TRUE(rank.actions.empty()) << "told once; the next update is waited for";
  rank.Fill(3, 4);
  rank.Do(protocol::Commit{Update(3)});
  EXPECT_TRUE(rank.Answer().ok());
  rank.Do(FinishCalled{});
  rank.Do(protocol::Serve{Update(3)});
  EXPECT_EQ(rank.state.served, Number(4));
  EXPECT_EQ(rank.state.state, EngineState::kServing);
}

TEST(InferenceMachine, AbortBeforeASourceWasToldOfTheGrantKeepsTheVersion) {
  Rank rank(Landing::kInPlace);
  GrantAfterServing(rank);
  rank.Do(protocol::Abort{.update = Update(2), .reason = kDead, .started = false});
  EXPECT_TRUE(rank.Action<RevokeGrants>());
  rank.Do(GrantsFenced{Update(2)});
  EXPECT_EQ(rank.Answer(), kDead);
  ASSERT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_FALSE(rank.Sent<protocol::Aborted>()->lost);
  EXPECT_EQ(rank.state.served, Number(3));
  EXPECT_EQ(rank.state.state, EngineState::kServing);

  Rank written(Landing::kInPlace);
  GrantAfterServing(written);
  written.Do(protocol::Abort{.update = Update(2), .reason = kDead, .started = true});
  written.Do(GrantsFenced{Update(2)});
  EXPECT_TRUE(written.Sent<protocol::Aborted>()->lost);
  EXPECT_EQ(written.state.state, EngineState::kFailed);
}

TEST(InferenceMachine, RegisteringAnewGivesAWaitingRequestBack) {
  Rank rank(Landing::kInPlace);
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(RegisterCalled{.landing = Landing::kInPlace, .same_memory = false});
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_FALSE(rank.Sent<protocol::Failed>()) << "the controller begins the update again";
  rank.Do(protocol::Abort{.update = Update(1), .reason = kDead, .started = false});
  EXPECT_FALSE(rank.Sent<protocol::Aborted>()->lost);
}

TEST(InferenceMachine, SupersessionIsNoBusinessOfTheCallThatWaits) {
  Rank rank(Landing::kInPlace);
  GrantAfterServing(rank);
  rank.Do(protocol::Abort{.update = Update(2), .reason = Status::Ok(), .started = false});
  rank.Do(GrantsFenced{Update(2)});
  EXPECT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_FALSE(rank.Action<AnswerCall>());
  rank.Do(protocol::GrantRequest{Update(3), Number(5)});
  EXPECT_TRUE(rank.Action<OpenGrants>()) << "the engine still waits, paused";

  // What ends the session while the old grants are being fenced ends the call.
  Rank ended(Landing::kInPlace);
  GrantAfterServing(ended);
  ended.Do(protocol::Abort{.update = Update(2), .reason = Status::Ok(), .started = false});
  const Status end(Code::kTimedOut, "no controller");
  ended.Do(SessionEnded{end});
  ended.Do(GrantsFenced{Update(2)});
  EXPECT_EQ(ended.Answer(), end);
}

TEST(InferenceMachine, AfterItsOwnFailureTheControllerSaysWhetherTheVersionIsKept) {
  for (const bool started : {false, true}) {
    for (const bool fenced_first : {false, true}) {
      Rank rank(Landing::kInPlace);
      GrantAfterServing(rank);
      rank.Do(SourceLost{Update(2), kDead});
      EXPECT_TRUE(rank.Sent<protocol::Failed>());
      const protocol::Abort abort{.update = Update(2), .reason = kDead, .started = started};
      if (fenced_first) {
        rank.Do(GrantsFenced{Update(2)});
        EXPECT_TRUE(rank.actions.empty());
        rank.Do(abort);
      } else {
        rank.Do(abort);
        rank.Do(GrantsFenced{Update(2)});
      }
      EXPECT_EQ(rank.Answer(), kDead);
      EXPECT_EQ(rank.Sent<protocol::Aborted>()->lost, started);
      EXPECT_EQ(rank.state.served, started ? Version{} : Number(3));
    }
  }
  // Without the controller nobody will ever say.
  Rank alone(Landing::kInPlace);
  GrantAfterServing(alone);
  alone.Do(SourceLost{Update(2), kDead});
  alone.Do(GrantsFenced{Update(2)});
  alone.Do(SessionEnded{{Code::kTimedOut, "no controller"}});
  EXPECT_EQ(alone.Answer(), kDead);
  EXPECT_EQ(alone.state.state, EngineState::kFailed);
}

TEST(InferenceMachine, AbortWhileCopyingWaitsForTheCopyAndFails) {
  Rank rank(Landing::kShadow);
  rank.Fill(1, 3);
  rank.Do(BeginCalled{});
  rank.Do(ReceiveCalled{});
  rank.Do(protocol::Commit{Update(1)});
  rank.Do(protocol::Abort{Update(1), kDead});
  EXPECT_TRUE(rank.actions.empty());
  rank.Do(CallExpired{});
  EXPECT_TRUE(rank.actions.empty()) << "the caller itself is copying";
  rank.Do(SwitchRun{.update = Update(1)});
  EXPECT_EQ(rank.Answer(), kDead);
  EXPECT_TRUE(rank.Sent<protocol::Aborted>()->lost);
  EXPECT_EQ(rank.state.state, EngineState::kFailed);
  EXPECT_EQ(rank.state.served, Version{});
}

TEST(InferenceMachine, AbortAfterTheSwitchFails) {
  Rank rank(Landing::kShadow);
  rank.Fill(1, 3);
  rank.Do(BeginCalled{});
  rank.Do(ReceiveCalled{});
  rank.Do(protocol::Commit{Update(1)});
  rank.Do(SwitchRun{.update = Update(1)});
  rank.Do(protocol::Abort{Update(1), kDead});
  EXPECT_TRUE(rank.Sent<protocol::Aborted>()->lost);
  rank.Do(FinishCalled{});
  EXPECT_EQ(rank.Answer(), kDead);
  rank.Do(FinishCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument);
}

TEST(InferenceMachine, WrongChecksumTakesTheEngineOut) {
  Rank rank(Landing::kShadow, /*verify=*/true);
  rank.Fill(1, 3);
  EXPECT_TRUE(rank.Action<VerifyChecksums>());
  EXPECT_FALSE(rank.Sent<protocol::Ready>());
  rank.Do(Verified{Update(1), {Code::kCorrupt, "wrong checksum"}});
  ASSERT_TRUE(rank.Sent<protocol::Failed>());
  EXPECT_EQ(rank.Sent<protocol::Failed>()->reason.code(), Code::kCorrupt);
  rank.Do(protocol::Abort{Update(1), {Code::kCorrupt, "wrong checksum"}});
  EXPECT_TRUE(rank.Sent<protocol::Aborted>());
  rank.Fill(2, 3);
  rank.Do(Verified{Update(2), Status::Ok()});
  EXPECT_TRUE(rank.Sent<protocol::Ready>());
}

TEST(InferenceMachine, LostSourceFailsTheUpdate) {
  Rank rank(Landing::kShadow);
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(GrantsOpened{Update(1), {}});
  rank.Do(SourceLost{Update(1), kDead});
  EXPECT_EQ(rank.Sent<protocol::Failed>()->reason, kDead);
  EXPECT_TRUE(rank.Action<RevokeGrants>());
  rank.Do(protocol::Abort{Update(1), kDead});
  EXPECT_TRUE(rank.actions.empty());
  rank.Do(GrantsFenced{Update(1)});
  EXPECT_TRUE(rank.Sent<protocol::Aborted>());
}

TEST(InferenceMachine, LostWorkersEndOneWait) {
  Rank rank(Landing::kShadow);
  rank.Do(protocol::Lost{{protocol::Role::kInference, "other", 0}, kDead});
  rank.Do(WaitCalled{});
  EXPECT_TRUE(rank.actions.empty()) << "another engine does not matter here";
  rank.Do(protocol::Lost{{protocol::Role::kTrainer, "", 1}, kDead});
  EXPECT_EQ(rank.Answer(), kDead);
  rank.Do(WaitCalled{});
  EXPECT_TRUE(rank.actions.empty());
  rank.Do(CallExpired{});
  EXPECT_EQ(rank.Answer().code(), Code::kTimedOut);
  EXPECT_THAT(rank.Answer().message(), testing::HasSubstr("trainer 1 is lost"));
  EXPECT_EQ(rank.state.user, UserPhase::kOutside);
  rank.Do(WaitCalled{});
  rank.Do(CallExpired{.interrupted = true});
  EXPECT_EQ(rank.Answer().code(), Code::kCancelled);
}

TEST(InferenceMachine, ALossThatEndsAnUpdateBetweenTwoWaitsIsToldToTheNext) {
  for (const auto landing : {Landing::kInPlace, Landing::kShadow}) {
    Rank rank(landing);
    rank.Do(protocol::GrantRequest{Update(1), Number(3)});
    rank.Do(protocol::Lost{{protocol::Role::kInference, "e", 1}, kDead});
    rank.Do(protocol::Abort{.update = Update(1), .reason = kDead, .started = false});
    if (landing == Landing::kShadow) {
      rank.Do(GrantsOpened{Update(1), {}});
      rank.Do(GrantsFenced{Update(1)});
    }
    EXPECT_FALSE(rank.Action<AnswerCall>()) << "nobody is in a call";
    rank.Do(WaitCalled{});
    EXPECT_EQ(rank.Answer(), kDead);
    rank.Do(WaitCalled{});
    EXPECT_FALSE(rank.Action<AnswerCall>()) << "once is enough";
  }
}

TEST(InferenceMachine, AbortAfterTheErrorOfReceiveIsAnsweredOnceNobodyWrites) {
  Rank rank(Landing::kInPlace);
  GrantInPhases(rank);
  rank.Do(ReceiveCalled{});
  rank.Do(protocol::Abort{Update(1), kDead});
  EXPECT_EQ(rank.Answer(), kDead) << "the engine is paused: it need not wait for the fence";
  rank.Do(AbortCalled{});
  EXPECT_FALSE(rank.Action<AnswerCall>());
  rank.Do(GrantsFenced{Update(1)});
  ASSERT_TRUE(rank.Action<AnswerCall>());
  EXPECT_TRUE(rank.Answer().ok());
  rank.Do(BeginCalled{});
  EXPECT_TRUE(rank.Answer().ok());
}

TEST(InferenceMachine, AnAbortThatTheControllerDoesNotAnswerEndsThePhasesOnceNobodyWrites) {
  Rank rank(Landing::kInPlace);
  rank.state.served = Number(2);
  rank.state.state = EngineState::kServing;
  GrantInPhases(rank);
  rank.Do(AbortCalled{});
  rank.Do(CallExpired{});
  EXPECT_EQ(rank.Answer().code(), Code::kFenced);
  rank.Do(BeginCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument) << "somebody may still write";
  rank.Do(AbortCalled{});
  rank.Do(GrantsFenced{Update(1)});
  rank.Do(CallExpired{});
  EXPECT_EQ(rank.Answer().code(), Code::kTimedOut) << "did a source start?";
  rank.Do(BeginCalled{});
  EXPECT_TRUE(rank.Answer().ok());
  rank.Do(protocol::Abort{.update = Update(1), .reason = kDead, .started = false});
  EXPECT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_EQ(rank.state.served, Number(2));
  rank.Do(ReceiveCalled{});
  EXPECT_FALSE(rank.Action<AnswerCall>()) << "it has given that update up itself";
}

TEST(InferenceMachine, ACallThatBeginsWhileAToldAbortIsFencedHearsOfTheEndOfTheSession) {
  Rank rank(Landing::kInPlace);
  GrantInPhases(rank);
  rank.Do(ReceiveCalled{});
  rank.Do(protocol::Abort{Update(1), kDead});
  EXPECT_EQ(rank.Answer(), kDead);
  rank.Do(ReceiveCalled{});
  EXPECT_FALSE(rank.Action<AnswerCall>()) << "it waits for the next version";
  const Status end(Code::kUnavailable, "no controller");
  rank.Do(SessionEnded{end});
  EXPECT_EQ(rank.Answer(), end);
}

TEST(InferenceMachine, AbortWhileTheChecksumsAreComparedEndsThePhases) {
  Rank rank(Landing::kInPlace);
  GrantInPhases(rank);
  rank.state.verify = true;
  rank.Do(Arrived{Update(1), 100, 0.5});
  rank.Do(GrantsFenced{Update(1)});
  ASSERT_TRUE(rank.Action<VerifyChecksums>());
  rank.Do(AbortCalled{});
  rank.Do(CallExpired{});
  EXPECT_EQ(rank.Answer().code(), Code::kTimedOut);
  rank.Do(BeginCalled{});
  EXPECT_TRUE(rank.Answer().ok());
}

TEST(InferenceMachine, ARepairThatHadNotStartedAndFindsNoOtherHolderEndsTheCall) {
  Rank rank(Landing::kInPlace);
  rank.Do(BeginCalled{});
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(ReceiveCalled{});
  rank.Do(GrantsOpened{Update(1), {}});
  rank.Do(protocol::Abort{.update = Update(1), .reason = Status::Ok(), .started = false});
  rank.Do(GrantsFenced{Update(1)});
  EXPECT_FALSE(rank.Action<AnswerCall>());
  rank.Do(protocol::Abort{.update = Update(1), .reason = kDead, .started = false});
  EXPECT_EQ(rank.Answer(), kDead);
}

TEST(InferenceMachine, AnAbortDoesNotEndThePhasesWhileOthersReadTheLiveTensors) {
  Rank rank(Landing::kInPlace);
  GrantInPhases(rank);
  rank.Do(Arrived{Update(1), 100, 0.5});
  rank.Do(GrantsFenced{Update(1)});
  ASSERT_TRUE(rank.Sent<protocol::Ready>());
  rank.Do(MemoryLent{});
  rank.Do(AbortCalled{});
  EXPECT_TRUE(rank.Action<ReclaimMemory>());
  rank.Do(CallExpired{});
  EXPECT_EQ(rank.Answer().code(), Code::kFenced);
  rank.Do(BeginCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument);
  rank.Do(AbortCalled{});
  rank.Do(MemoryFree{});
  EXPECT_TRUE(rank.Answer().ok());
}

TEST(InferenceMachine, WaitThatHasBegunToChangeTensorsGoesToTheEnd) {
  Rank rank(Landing::kInPlace);
  rank.Do(WaitCalled{});
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(CallExpired{});
  EXPECT_TRUE(rank.actions.empty());
  rank.Do(GrantsOpened{Update(1), {}});
  rank.Do(CallExpired{});
  EXPECT_TRUE(rank.actions.empty());
  rank.Do(SessionEnded{{Code::kTimedOut, "no controller"}});
  EXPECT_TRUE(rank.Action<RevokeGrants>());
  EXPECT_FALSE(rank.Action<AnswerCall>());
  rank.Do(CallExpired{});
  EXPECT_EQ(rank.Answer().code(), Code::kFenced) << "a stopped writer must not hang the reader";
}

TEST(InferenceMachine, AnInterruptedWaitGivesTheUpdateUpAndReturnsFenced) {
  Rank rank(Landing::kInPlace);
  rank.Do(WaitCalled{});
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(GrantsOpened{Update(1), {}});
  rank.Do(CallExpired{.interrupted = true});
  EXPECT_TRUE(rank.Action<RevokeGrants>());
  EXPECT_FALSE(rank.Action<AnswerCall>()) << "somebody may still write";
  rank.Do(GrantsFenced{Update(1)});
  EXPECT_EQ(rank.Answer().code(), Code::kCancelled);
  EXPECT_EQ(rank.state.user, UserPhase::kOutside);
}

TEST(InferenceMachine, SessionEndAnswersEveryCall) {
  for (const Landing landing : {Landing::kInPlace, Landing::kShadow}) {
    Rank rank(landing);
    rank.Do(BeginCalled{});
    rank.Do(ReceiveCalled{});
    const Status end(Code::kTimedOut, "no controller at 127.0.0.1:1 for 10 s");
    rank.Do(SessionEnded{end});
    EXPECT_EQ(rank.Answer(), end);
    rank.Do(ReceiveCalled{});
    EXPECT_EQ(rank.Answer(), end);
    rank.Do(AbortCalled{});
    EXPECT_TRUE(rank.Answer().ok());
  }
}

TEST(InferenceMachine, LaterRequestReplacesOneWhoseEndWasNotHeard) {
  Rank rank(Landing::kShadow);
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(GrantsOpened{Update(1), {}});
  rank.Do(protocol::GrantRequest{Update(2), Number(4)});
  EXPECT_TRUE(rank.Action<RevokeGrants>());
  EXPECT_FALSE(rank.Action<OpenGrants>()) << "one grant set at a time";
  rank.Do(GrantsFenced{Update(1)});
  ASSERT_TRUE(rank.Action<OpenGrants>());
  EXPECT_EQ(rank.Action<OpenGrants>()->update, Update(2));
}

TEST(InferenceMachine, StaleMessagesChangeNothing) {
  Rank rank(Landing::kShadow);
  rank.Fill(5, 3);
  const InferenceState before = rank.state;
  rank.Do(protocol::GrantRequest{Update(4), Number(2)});
  rank.Do(protocol::Commit{Update(4)});
  rank.Do(protocol::Serve{Update(5)});
  rank.Do(Arrived{Update(4), 1, 1});
  rank.Do(GrantsFenced{Update(4)});
  rank.Do(protocol::Welcome{.term = {.number = 0, .id = 1}, .run = {.number = 1}, .lease_seconds = 1});
  EXPECT_EQ(rank.state, before);
}

TEST(InferenceMachine, RequestOfAnotherEpochIsRefused) {
  Rank rank(Landing::kShadow);
  rank.Do(protocol::GrantRequest{Update(1, 2), Number(3)});
  EXPECT_TRUE(rank.Sent<protocol::Failed>());
  EXPECT_EQ(rank.state.step, Step::kNone);
  Rank again(Landing::kShadow);
  again.Do(RegisterCalled{.landing = Landing::kShadow, .same_memory = true});
  again.Do(protocol::GrantRequest{Update(2), Number(3)});
  EXPECT_EQ(again.state.step, Step::kNone) << "the plan is void with the old registration";
  EXPECT_FALSE(again.Sent<protocol::Failed>()) << "and the controller will know from Register";
}

TEST(InferenceMachine, CallsOutOfOrderAreRefused) {
  Rank rank(Landing::kInPlace);
  rank.Do(ReceiveCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument);
  rank.Do(FinishCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument);
  rank.Do(BeginCalled{});
  rank.Do(BeginCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument);
  rank.Do(WaitCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument);
  rank.Do(RegisterCalled{});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument);
}

TEST(InferenceMachine, AWaitThatWasInterruptedLeavesNoPauseBehind) {
  Rank rank(Landing::kInPlace);
  rank.Do(WaitCalled{});
  rank.Fill(1, 1);
  rank.Do(protocol::Commit{Update(1)});
  ASSERT_TRUE(rank.Sent<protocol::Committed>());
  rank.Do(CallExpired{.interrupted = true});
  EXPECT_EQ(rank.Answer().code(), Code::kCancelled);
  rank.Do(protocol::Abort{.update = Update(1), .reason = kDead});
  rank.Do(protocol::GrantRequest{Update(2), Number(2)});
  EXPECT_FALSE(rank.Action<OpenGrants>()) << "the engine is in no call";
  rank.Do(WaitCalled{});
  EXPECT_TRUE(rank.Action<OpenGrants>()) << "and the next one is taken";
}

TEST(InferenceMachine, ALossDuringAnUpdateThatIsSupersededIsToldAfterIt) {
  Rank rank(Landing::kShadow);
  rank.Do(WaitCalled{});
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(GrantsOpened{Update(1), {}});
  rank.Do(protocol::Lost{{protocol::Role::kInference, "e", 1}, kDead});
  EXPECT_FALSE(rank.Action<AnswerCall>()) << "the update may still say it";
  rank.Do(protocol::Abort{.update = Update(1), .reason = Status::Ok(), .started = false});
  rank.Do(GrantsFenced{Update(1)});
  EXPECT_EQ(rank.Answer(), kDead) << "nothing else would ever end the call";
}

TEST(InferenceMachine, FinishWaitsForAnAbortThatWaitsForReaders) {
  Rank rank(Landing::kInPlace);
  rank.Do(BeginCalled{});
  rank.Fill(1, 5);
  rank.Do(protocol::Commit{Update(1)});
  rank.Do(ReceiveCalled{});
  ASSERT_TRUE(rank.Answer().ok());
  rank.Do(MemoryLent{});
  rank.Do(protocol::Abort{.update = Update(1), .reason = kDead});
  EXPECT_TRUE(rank.Action<ReclaimMemory>());
  rank.Do(FinishCalled{});
  EXPECT_FALSE(rank.Sent<protocol::Committed>());
  rank.Do(MemoryFree{});
  EXPECT_EQ(rank.Answer(), kDead);
  ASSERT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_TRUE(rank.Sent<protocol::Aborted>()->lost);
}

}  // namespace
}  // namespace weightcast::worker
