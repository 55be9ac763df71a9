#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/worker/rank.h"

// The engine's own part of the switch, and Commit apart from Served.
namespace weightcast::worker {
namespace {

using protocol::EngineState;
using protocol::Landing;

const Status kRefused(Code::kCancelled, "on_switch raised ValueError: no");

/// Serves version 3, and its engine is asked to switch to version 4.
void AskToSwitch(Rank& rank) {
  if (rank.state.landing == Landing::kInPlace)
    rank.Do(RegisterCalled{.same_memory = true, .runs_switch = true});
  rank.Do(PlanArrived{1});
  rank.Do(PlanReady{1});
  for (const uint64_t update : {1, 2}) {
    rank.Do(BeginCalled{});
    rank.Fill(update, static_cast<int64_t>(update) + 2);
    rank.Do(ReceiveCalled{});
    rank.Do(protocol::Commit{Update(update)});
    ASSERT_TRUE(rank.Action<RunSwitch>());
    if (update == 2) return;
    rank.Do(SwitchRun{.update = Update(update)});
    rank.Do(FinishCalled{});
    rank.Do(protocol::Serve{Update(update)});
  }
}

TEST(InferenceLoader, ARefusedSwitchLeavesTheOldVersion) {
  Rank rank(Landing::kShadow);
  AskToSwitch(rank);
  EXPECT_EQ(rank.state.served, Version{}) << "the engine may be switching";
  rank.Do(SwitchRun{.update = Update(2), .status = kRefused});
  EXPECT_EQ(rank.Answer(), kRefused);
  ASSERT_TRUE(rank.Sent<protocol::Failed>());
  EXPECT_EQ(rank.Sent<protocol::Failed>()->reason, kRefused);
  EXPECT_FALSE(rank.Sent<protocol::Committed>());
  EXPECT_EQ(rank.state.served, Number(3));
  EXPECT_EQ(rank.state.state, EngineState::kServing);
  rank.Do(protocol::Abort{Update(2), kRefused});
  ASSERT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_FALSE(rank.Sent<protocol::Aborted>()->lost);
}

TEST(InferenceLoader, BytesThatLandedInPlaceAreLostWithARefusedSwitch) {
  Rank rank(Landing::kInPlace);
  AskToSwitch(rank);
  rank.Do(SwitchRun{.update = Update(2), .status = kRefused});
  EXPECT_EQ(rank.Answer(), kRefused);
  EXPECT_EQ(rank.state.served, Version{});
  EXPECT_EQ(rank.state.state, EngineState::kFailed);
}

TEST(InferenceLoader, AnAbortWhileTheEngineRefusesKeepsTheOldVersion) {
  Rank rank(Landing::kShadow);
  AskToSwitch(rank);
  rank.Do(protocol::Abort{Update(2), kDead});
  rank.Do(SwitchRun{.update = Update(2), .status = kRefused});
  EXPECT_EQ(rank.Answer(), kDead);
  EXPECT_FALSE(rank.Sent<protocol::Aborted>()->lost);
  EXPECT_EQ(rank.state.served, Number(3));
}

TEST(InferenceLoader, CommitReturnsAndServedWaits) {
  Rank rank(Landing::kShadow);
  AskToSwitch(rank);
  rank.Do(SwitchRun{.update = Update(2)});
  rank.Do(FinishCalled{.commits = false});
  EXPECT_EQ(rank.Answer().code(), Code::kInvalidArgument) << "Served before Commit";
  rank.Do(CommitCalled{});
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_TRUE(rank.Sent<protocol::Committed>());
  rank.Do(CommitCalled{});
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_FALSE(rank.Sent<protocol::Committed>()) << "once is enough";
  rank.Do(FinishCalled{.commits = false});
  EXPECT_FALSE(rank.Action<AnswerCall>());
  rank.Do(CallExpired{});
  EXPECT_EQ(rank.Answer().code(), Code::kTimedOut);
  rank.Do(protocol::Serve{Update(2)});
  rank.Do(FinishCalled{.commits = false});
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_EQ(rank.state.served, Number(4));
}

TEST(InferenceLoader, CommitAfterAnAbortSaysWhy) {
  Rank rank(Landing::kShadow);
  AskToSwitch(rank);
  rank.Do(SwitchRun{.update = Update(2)});
  rank.Do(protocol::Abort{Update(2), kDead});
  EXPECT_TRUE(rank.Sent<protocol::Aborted>()->lost) << "Receive had returned";
  rank.Do(CommitCalled{});
  EXPECT_EQ(rank.Answer(), kDead);
}

}  // namespace
}  // namespace weightcast::worker
