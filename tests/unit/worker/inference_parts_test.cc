#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/worker/rank.h"

// A rank that takes an update in several parts, each granted when the engine has taken over the one before.
namespace weightcast::worker {
namespace {

using protocol::EngineState;
using protocol::Landing;
using ::testing::HasSubstr;

/// Three parts; the engine has begun.
Rank InThreeParts() {
  Rank rank(Landing::kInPlace);
  rank.Do(RegisterCalled{.landing = Landing::kInPlace, .same_memory = false, .parts = 3});
  rank.Do(PlanArrived{2});
  rank.Do(PlanReady{2});
  rank.Do(BeginCalled{});
  return rank;
}
protocol::UpdateId Second(uint64_t sequence = 1) { return Update(sequence, 2); }
protocol::GrantRequest Ask(uint32_t part, uint64_t sequence = 1) {
  return {.update = Second(sequence), .version = Number(3), .part = part};
}
/// From the grants to Ready.
void Land(Rank& rank, uint64_t sequence = 1) {
  rank.Do(GrantsOpened{Second(sequence), {}});
  rank.Do(Arrived{Second(sequence), 100, 0.5, {{.source = 4, .bytes = 100, .seconds = 0.5}}});
  rank.Do(GrantsFenced{Second(sequence)});
}

TEST(InferenceParts, EachIsGrantedWhenTheEngineHasTakenOverTheOneBefore) {
  Rank rank = InThreeParts();
  EXPECT_FALSE(rank.state.shares) << "its memory holds one part after the other";
  rank.Do(Ask(0));
  ASSERT_TRUE(rank.Action<OpenGrants>());
  for (uint32_t part = 0; part < 2; ++part) {
    EXPECT_EQ(rank.state.part, part);
    rank.Do(ReceiveCalled{});
    Land(rank);
    ASSERT_TRUE(rank.Sent<protocol::Ready>());
    EXPECT_EQ(rank.Sent<protocol::Ready>()->part, part);
    EXPECT_EQ(rank.Sent<protocol::Ready>()->bytes, 100 * (part + 1)) << "of all parts so far";
    EXPECT_EQ(rank.Sent<protocol::Ready>()->sources.size(), 1U);
    EXPECT_FALSE(rank.Action<AnswerCall>()) << "other ranks may not have it";
    EXPECT_EQ(rank.state.state, EngineState::kUpdating);
    rank.Do(Ask(part + 1));
    ASSERT_TRUE(rank.Answer().ok());
    EXPECT_EQ(rank.Action<AnswerCall>()->part, part);
    EXPECT_FALSE(rank.Action<OpenGrants>()) << "the engine reads what has come";
    rank.Do(ReceiveCalled{});
    ASSERT_TRUE(rank.Action<OpenGrants>());
    EXPECT_EQ(rank.Action<OpenGrants>()->part, part + 1);
    rank.Do(CallExpired{});
    EXPECT_EQ(rank.Answer().code(), Code::kTimedOut);
  }
  rank.Do(GrantsOpened{Second(), {}});
  EXPECT_EQ(rank.Sent<protocol::Granted>()->part, 2U);
  Land(rank);
  EXPECT_EQ(rank.state.state, EngineState::kReady);
  rank.Do(protocol::Commit{Second()});
  rank.Do(ReceiveCalled{});
  EXPECT_EQ(rank.Action<AnswerCall>()->part, 2U);
  EXPECT_EQ(rank.Action<AnswerCall>()->version, Number(3));
  rank.Do(FinishCalled{});
  EXPECT_TRUE(rank.Sent<protocol::Committed>());
  rank.Do(protocol::Serve{Second()});
  EXPECT_EQ(rank.state.served, Number(3));
  EXPECT_EQ(rank.state.landed, Version{}) << "no other gets anything from here";
}

TEST(InferenceParts, APartThatIsThereBeforeTheCallIsToldByIt) {
  Rank rank = InThreeParts();
  rank.Do(Ask(0));
  Land(rank);
  rank.Do(Ask(1));
  EXPECT_TRUE(rank.actions.empty());
  rank.Do(ReceiveCalled{});
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_EQ(rank.Action<AnswerCall>()->part, 0U);
}

TEST(InferenceParts, AnAbortBetweenTwoPartsLosesTheVersion) {
  Rank rank = InThreeParts();
  rank.Do(Ask(0));
  rank.Do(ReceiveCalled{});
  Land(rank);
  rank.Do(Ask(1));
  rank.Do(protocol::Abort{.update = Second(), .reason = kDead});
  ASSERT_TRUE(rank.Sent<protocol::Aborted>());
  EXPECT_TRUE(rank.Sent<protocol::Aborted>()->lost);
  EXPECT_EQ(rank.state.state, EngineState::kFailed);
  rank.Do(Ask(0, 2));
  EXPECT_FALSE(rank.Action<OpenGrants>()) << "the engine still reads the part that it was given";
  rank.Do(ReceiveCalled{});
  EXPECT_EQ(rank.Answer(), kDead);
  EXPECT_TRUE(rank.Action<OpenGrants>()) << "now it does not";
}

TEST(InferenceParts, TheUserGivesUpBetweenTwoParts) {
  Rank rank = InThreeParts();
  rank.Do(Ask(0));
  rank.Do(ReceiveCalled{});
  Land(rank);
  rank.Do(Ask(1));
  rank.Do(AbortCalled{});
  EXPECT_TRUE(rank.Sent<protocol::Failed>());
  EXPECT_TRUE(rank.Answer().ok());
  EXPECT_EQ(rank.state.state, EngineState::kFailed);
  EXPECT_EQ(rank.state.user, UserPhase::kOutside);
}

TEST(InferenceParts, ANewPlanEndsAnUpdateOfWhichPartsAreLeft) {
  Rank rank = InThreeParts();
  rank.Do(Ask(0));
  rank.Do(ReceiveCalled{});
  Land(rank);
  rank.Do(PlanArrived{3});
  EXPECT_THAT(rank.Answer().message(), HasSubstr("the plan changed"));
  EXPECT_EQ(rank.state.state, EngineState::kFailed);
}

TEST(InferenceParts, OutOfOrder) {
  Rank rank = InThreeParts();
  rank.Do(Ask(1));
  ASSERT_TRUE(rank.Sent<protocol::Failed>());
  EXPECT_THAT(rank.Sent<protocol::Failed>()->reason.message(), HasSubstr("group of tensors 1"));
  rank.Do(Ask(0, 2));
  rank.Do(GrantsOpened{Second(2), {}});
  const InferenceState before = rank.state;
  rank.Do(Ask(1, 2));  // Before the first has come.
  EXPECT_TRUE(rank.actions.empty());
  Land(rank, 2);
  rank.Do(Ask(0, 2));
  rank.Do(Ask(2, 2));
  rank.Do(protocol::Commit{Second(2)});
  EXPECT_TRUE(rank.actions.empty());
  EXPECT_EQ(rank.state.step, Step::kReady);
  EXPECT_EQ(rank.state.part, before.part);
  Rank other = InThreeParts();
  other.Do(AbortCalled{});
  other.Do(WaitCalled{});
  EXPECT_EQ(other.Answer().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace weightcast::worker
