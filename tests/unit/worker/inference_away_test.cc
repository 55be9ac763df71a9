#include <gtest/gtest.h>

#include "unit/worker/rank.h"

// An inference rank's machine while the controller is away.
namespace weightcast::worker {
namespace {

using protocol::EngineState;
using protocol::Landing;

const Status kAway(Code::kUnavailable, "no controller for 10 s");

TEST(InferenceAway, ACallEndsAndTheRankServesOn) {
  for (const Landing landing : {Landing::kInPlace, Landing::kShadow}) {
    Rank rank(landing);
    rank.Fill(1, 3);
    rank.Do(WaitCalled{});
    rank.Fill(1, 3);
    rank.Do(protocol::Commit{Update(1)});
    rank.Do(SwitchRun{.update = Update(1)});
    rank.Do(protocol::Serve{Update(1)});
    ASSERT_EQ(rank.state.served, Number(3));
    for (int i = 0; i < 2; ++i) {
      rank.Do(WaitCalled{});
      rank.Do(CallExpired{.away = kAway});
      EXPECT_EQ(rank.Answer(), kAway);
      EXPECT_EQ(rank.state.served, Number(3));
      EXPECT_EQ(rank.state.state, EngineState::kServing);
    }
    rank.Do(protocol::Welcome{.term = {.number = 2, .id = 8}, .run = {.number = 1}, .lease_seconds = 5});
    ASSERT_TRUE(rank.Action<SendRegistration>());
    EXPECT_EQ(rank.state.served, Number(3));
  }
}

TEST(InferenceAway, AReadySpareBufferWaitsAndTheOldVersionIsServed) {
  Rank rank(Landing::kShadow);
  rank.Do(WaitCalled{});
  rank.Fill(1, 3);
  ASSERT_EQ(rank.state.step, Step::kReady);
  rank.Do(CallExpired{.away = kAway});
  EXPECT_EQ(rank.Answer(), kAway);
  EXPECT_EQ(rank.state.step, Step::kReady) << "the same controller may come back";
  rank.Do(WaitCalled{});
  rank.Do(protocol::Commit{Update(1)});
  EXPECT_TRUE(rank.Action<RunSwitch>());
}

TEST(InferenceAway, AWaitGivesUpWhatWasLandingInPlace) {
  Rank rank(Landing::kInPlace);
  GrantAfterServing(rank);
  rank.Do(CallExpired{.away = kAway});
  EXPECT_TRUE(rank.Sent<protocol::Failed>());
  EXPECT_TRUE(rank.Action<RevokeGrants>());
  EXPECT_FALSE(rank.Action<AnswerCall>()) << "somebody may still write";
  rank.Do(GrantsFenced{Update(2)});
  EXPECT_EQ(rank.Answer(), kAway) << "nobody will say whether a source was told";
  EXPECT_EQ(rank.state.state, EngineState::kFailed);
  rank.Do(WaitCalled{});
  EXPECT_FALSE(rank.Action<AnswerCall>()) << "it waits for the next version";
}

TEST(InferenceAway, ACallInThePhasesMayBeMadeAgain) {
  Rank rank(Landing::kInPlace);
  GrantInPhases(rank);
  rank.Do(ReceiveCalled{});
  rank.Do(CallExpired{.away = kAway});
  EXPECT_EQ(rank.Answer(), kAway);
  EXPECT_EQ(rank.state.step, Step::kWriting);
  rank.Do(Arrived{Update(1), 100, 0.5});
  rank.Do(GrantsFenced{Update(1)});
  rank.Do(ReceiveCalled{});
  rank.Do(protocol::Commit{Update(1)});
  EXPECT_TRUE(rank.Answer().ok());
  rank.Do(FinishCalled{});
  EXPECT_TRUE(rank.Sent<protocol::Committed>());
  rank.Do(CallExpired{.away = kAway});
  EXPECT_EQ(rank.Answer(), kAway);
  EXPECT_EQ(rank.state.state, EngineState::kCommitted) << "paused: others may have switched";
  EXPECT_EQ(rank.state.served.number, -1);
  rank.Do(FinishCalled{});
  rank.Do(protocol::Serve{Update(1)});
  EXPECT_TRUE(rank.Answer().ok());
}

TEST(InferenceAway, AnInterruptedWaitNeedsNoWord) {
  Rank rank(Landing::kInPlace);
  GrantAfterServing(rank);
  rank.Do(CallExpired{.interrupted = true});
  rank.Do(GrantsFenced{Update(2)});
  ASSERT_TRUE(rank.state.uncertain);
  rank.Do(CallExpired{.away = kAway});
  EXPECT_EQ(rank.Answer().code(), Code::kCancelled) << "what ended the update";
  EXPECT_EQ(rank.state.step, Step::kNone);
}

}  // namespace
}  // namespace weightcast::worker
