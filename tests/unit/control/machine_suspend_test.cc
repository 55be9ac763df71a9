#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/control/cluster.h"

// Engines that sleep: out of every plan, waited for without a limit, and filled when they wake.

namespace weightcast::control {
namespace {

using protocol::EngineState;
using ::testing::HasSubstr;

TEST(MachineSuspend, OthersAreServedMeanwhile) {
  Cluster c;
  c.Start(2, {{"a", 2}, {"b", 1}});
  c.Suspend(c.engines["a"][1]);
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["b"][0]), kFirst);
  EXPECT_EQ(c.Served(c.engines["a"][0]).number, -1);
  EXPECT_TRUE(c.LastDone().met_policy) << "whoever sleeps is not counted";
  const auto view = ViewOf(c.state);
  EXPECT_EQ(view.engines[0].state, EngineState::kSuspended);
  EXPECT_FALSE(c.Armed(TimerKind::kJoin, c.state.roster.groups()[1].id))
      << "it may sleep as long as it likes";
}

TEST(MachineSuspend, OnWakingItGetsWhatOthersServe) {
  Cluster c;
  c.Start(2, {{"a", 2}, {"b", 1}});
  c.Suspend(c.engines["a"][1]);
  c.PublishAll(1);
  c.Settle();
  c.RegisterAnew(c.engines["a"][1]);
  c.Settle();
  for (const SessionId rank : c.engines["a"]) EXPECT_EQ(c.Served(rank), kFirst);
  EXPECT_TRUE(c.plans.rbegin()->second.from_engines || c.plans.size() > 2) << "from b, not from the trainers";
}

TEST(MachineSuspend, APublicationWaitsForTheOnlyEngine) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  const SessionId rank = c.engines["a"][0];
  c.Suspend(rank);
  c.Settle();
  c.PublishAll(1);
  c.Settle();
  EXPECT_TRUE(c.processes[c.trainers[0]].done.empty());
  EXPECT_FALSE(c.Armed(TimerKind::kJoin, kTrainers)) << "trainers wait for the sleeper";
  c.RegisterAnew(rank);
  c.Settle();
  EXPECT_EQ(c.Served(rank), kFirst);
  EXPECT_TRUE(c.LastDone().met_policy);
}

TEST(MachineSuspend, BeforeAnybodyHasStartedTheUpdateBeginsAgainWithoutIt) {
  Cluster c;
  c.Start(2, {{"a", 1}, {"b", 1}});
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(1);
  c.Settle();
  ASSERT_EQ(c.Phase(), "granting");
  c.Suspend(c.engines["a"][0]);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["b"][0]), kFirst);
  EXPECT_TRUE(c.LastDone().met_policy);
  EXPECT_EQ(c.LastDone().engines.size(), 1U);
}

TEST(MachineSuspend, ARankThatSleepsInANewSessionIsNoFailure) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  protocol::Hello hello;
  hello.name = {.role = protocol::Role::kInference, .engine = "b", .rank = 0};
  hello.world_size = 1;
  hello.state = EngineState::kSuspended;
  const SessionId rank = c.Join(hello);
  c.Settle();
  EXPECT_EQ(ViewOf(c.state).engines[1].state, EngineState::kSuspended);
  c.RegisterAnew(rank);
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.Served(rank), kFirst);
}

TEST(MachineSuspend, TrainersDoNotSleep) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.Do(MessageReceived{c.trainers[0], protocol::Suspended{}});
  EXPECT_THAT(c.processes[c.trainers[0]].refusal.message(), HasSubstr("its role does not send"));
}

}  // namespace
}  // namespace weightcast::control
