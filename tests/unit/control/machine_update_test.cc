#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/control/cluster.h"

namespace weightcast::control {
namespace {

using protocol::EngineState;
using ::testing::HasSubstr;

TEST(MachineUpdate, OneTrainerOneEngine) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  EXPECT_EQ(c.state.plan.epoch, 1U);
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
  EXPECT_FALSE(c.state.updates.open);
  const protocol::Done& done = c.LastDone();
  EXPECT_TRUE(done.met_policy);
  EXPECT_EQ(done.version, kFirst);
  ASSERT_EQ(done.engines.size(), 1U);
  EXPECT_TRUE(done.engines[0].committed);
  ASSERT_EQ(done.senders.size(), 1U);
  EXPECT_EQ(done.senders[0].bytes, 100U);
  ASSERT_EQ(done.receivers.size(), 1U);
  EXPECT_EQ(done.receivers[0].bytes, 100U);
  EXPECT_EQ(done.bytes, 100U);
  ASSERT_EQ(done.routes.size(), 1U);
  EXPECT_EQ(done.routes[0].sender, done.senders[0].name);
  EXPECT_EQ(done.routes[0].receiver, done.receivers[0].name);
  EXPECT_EQ(done.routes[0].bytes, 100U);
  EXPECT_EQ(done.update.sequence, 1U);
  EXPECT_EQ(c.processes[c.trainers[0]].releases, 1);
  EXPECT_EQ(c.state.updates.committed, kFirst);
}

TEST(MachineUpdate, DoneListsNoMoreThanTheSlowestOfMany) {
  Cluster c;
  c.Start(40, {{"a", 2}});
  c.PublishAll(1);
  c.Settle();
  const protocol::Done& done = c.LastDone();
  EXPECT_EQ(done.senders.size(), 32U);
  EXPECT_EQ(done.receivers.size(), 2U);
  EXPECT_EQ(done.routes.size(), 32U);
  EXPECT_EQ(done.bytes, 2 * 40 * 100U) << "of all";
}

TEST(MachineUpdate, ASourceGetsOneStartForAllItsDestinations) {
  Cluster c;
  c.Start(2, {{"a", 2}, {"b", 1}});
  const SessionId late = c.engines["b"][0];
  c.processes[late].grants = false;
  c.PublishAll(1);
  c.Settle();
  auto& trainer = c.processes[c.trainers[1]];
  trainer.stuck = true;  // Reads nothing.
  c.GrantLate(late);
  c.Settle();
  ASSERT_EQ(trainer.inbox.size(), 1U);
  const auto& start = std::get<protocol::Start>(trainer.inbox.front());
  ASSERT_EQ(start.grants.size(), 3U);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(start.grants[rank].destination, rank);
}

TEST(MachineUpdate, EnginesOfTwoRanksUnderBothPolicies) {
  for (const bool together : {true, false}) {
    Cluster c;
    c.config.together = together;
    c.Start(2, {{"a", 2}, {"b", 2}}, protocol::Landing::kShadow);
    for (int64_t number = 1; number <= 5; ++number) {
      c.PublishAll(number);
      c.Settle();
      for (const auto& [name, ranks] : c.engines)
        for (const SessionId rank : ranks) EXPECT_EQ(c.Served(rank).number, number);
      EXPECT_TRUE(c.LastDone(1).met_policy);
      EXPECT_EQ(c.LastDone(1).receivers.size(), 4U);
    }
    EXPECT_EQ(c.state.plan.epoch, 1U) << "planned once";
    EXPECT_EQ(c.state.updates.sequence, 5U);
  }
}

TEST(MachineUpdate, EachDoesNotWaitForTheSlow) {
  Cluster c;
  c.config.together = false;
  c.Start(1, {{"fast", 1}, {"slow", 1}});
  c.processes[c.engines["slow"][0]].grants = false;
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["fast"][0]), kFirst);
  EXPECT_TRUE(c.state.updates.open) << "the slow one still has time";
  EXPECT_EQ(c.timers.at({TimerKind::kStep, c.GroupOf("slow")}), c.config.grant_timeout);
  c.Fire(TimerKind::kStep, c.GroupOf("slow"));
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
  ASSERT_EQ(c.LastDone().engines.size(), 2U);
  EXPECT_FALSE(c.LastDone().engines[1].committed);
  EXPECT_THAT(c.LastDone().engines[1].reason.message(), HasSubstr("engine slow rank 0 has not granted"));
}

TEST(MachineUpdate, AllWaitForTheSlowButNotForEver) {
  Cluster c;
  c.Start(1, {{"fast", 1}, {"slow", 1}});
  c.processes[c.engines["slow"][0]].grants = false;
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.StateOf(c.engines["fast"][0]), EngineState::kUpdating);
  EXPECT_TRUE(c.started.empty()) << "no source is told before all have granted";
  EXPECT_FALSE(c.Armed(TimerKind::kStep, c.GroupOf("fast"))) << "it is not the fast one that is late";
  c.Fire(TimerKind::kStep, c.GroupOf("slow"));
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["fast"][0]), kFirst);
  EXPECT_FALSE(c.LastDone().met_policy);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("engine slow rank 0"));
  EXPECT_EQ(c.state.plan.epoch, 2U) << "an abort raises the epoch";
}

TEST(MachineUpdate, ALateRankCostsItsEngineNoVersion) {
  for (const bool together : {true, false}) {
    Cluster c;
    c.config.together = together;
    c.Start(2, {{"a", 2}});
    c.PublishAll(1);
    c.Settle();
    c.processes[c.engines["a"][1]].grants = false;
    c.PublishAll(2);
    c.Settle();
    EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kUpdating);
    EXPECT_EQ(c.timers.at({TimerKind::kStep, c.GroupOf("a")}), c.config.grant_timeout);
    c.Fire(TimerKind::kStep, c.GroupOf("a"));
    c.Settle();
    EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("engine a rank 1 has not granted"));
    for (const SessionId rank : c.engines["a"]) {
      EXPECT_EQ(c.StateOf(rank), EngineState::kServing);
      EXPECT_EQ(c.Served(rank), kFirst);
    }
    EXPECT_EQ(ViewOf(c.state).engines[0].version, kFirst);
    EXPECT_EQ(c.processes[c.trainers[0]].stops, 0) << "it had not been told to start";
  }
}

TEST(MachineUpdate, WhileAllWaitATrainersDeathCostsNoVersion) {
  Cluster c;
  c.Start(2, {{"a", 1}, {"b", 1}});
  c.PublishAll(1);
  c.Settle();
  c.processes[c.engines["b"][0]].grants = false;  // It generates.
  c.PublishAll(2);
  c.Settle();
  c.KillAndNotice(c.trainers[1]);
  c.Settle();
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("trainer 1 is lost"));
  EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kServing);
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
}

TEST(MachineUpdate, AnEngineThatIsPutOutLetsTheOthersStart) {
  Cluster c;
  c.Start(1, {{"a", 1}, {"b", 1}});
  c.processes[c.trainers[0]].writes = false;
  c.processes[c.engines["b"][0]].grants = false;
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.state.engines.targets[0].step, EngineStep::kGranted);
  EXPECT_EQ(ViewOf(c.state).phase, "granting");
  c.KillAndNotice(c.engines["b"][0]);
  c.Settle();
  EXPECT_EQ(c.state.engines.targets[0].step, EngineStep::kWriting);
  EXPECT_EQ(c.timers.at({TimerKind::kStep, c.GroupOf("a")}), c.config.timeout);
}

TEST(MachineUpdate, ALateEngineDoesNotHoldUpLaterVersions) {
  for (const bool together : {true, false}) {
    Cluster c;
    c.config.together = together;
    c.Start(2, {{"a", 1}});
    c.PublishAll(1, /*hold=*/true);
    c.Settle();
    const SessionId late = c.JoinRank("late", 0, 1);
    c.processes[late].grants = false;
    c.Settle();
    ASSERT_TRUE(c.state.updates.open);
    const TimerId step{TimerKind::kStep, c.GroupOf("late")};
    c.Fire(TimerKind::kStep, c.GroupOf("late"));  // A lease has passed: it is late.
    c.timers.at(step) = FromSeconds(7);           // What is left of grant_timeout.
    c.Publish(c.trainers[0], 2);
    c.Settle();
    EXPECT_EQ(c.state.updates.open->version, kFirst) << "not all have something newer";
    c.Publish(c.trainers[1], 2);
    c.Settle();
    ASSERT_TRUE(c.state.updates.open);
    EXPECT_EQ(c.state.updates.open->version.number, 2);
    EXPECT_EQ(c.processes[c.trainers[0]].superseded, 1);
    EXPECT_EQ(c.processes[c.trainers[1]].superseded, 1);
    EXPECT_EQ(c.Served(c.engines["a"][0]).number, together ? 1 : 2);
    EXPECT_EQ(c.timers.at(step), FromSeconds(7)) << "the late one has not the whole time again";
    c.Fire(TimerKind::kStep, c.GroupOf("late"));
    c.Settle();
    EXPECT_EQ(c.Served(c.engines["a"][0]).number, 2);
    EXPECT_EQ(c.StateOf(late), EngineState::kJoining);
    EXPECT_EQ(c.processes[c.trainers[0]].published, (std::map<int64_t, bool>{{1, true}, {2, true}}));
  }
}

TEST(MachineUpdate, AnEngineThatIsNotLateYetHasTheWholeTimeForTheNextVersion) {
  Cluster c;
  c.Start(2, {{"a", 1}});
  c.PublishAll(1, /*hold=*/true);
  c.Settle();
  c.processes[c.JoinRank("late", 0, 1)].grants = false;
  c.Settle();
  const TimerId step{TimerKind::kStep, c.GroupOf("late")};
  EXPECT_EQ(c.timers.at(step), c.config.lease) << "then others that come are served before it";
  c.PublishAll(2);
  c.Settle();
  ASSERT_TRUE(c.state.updates.open);
  EXPECT_EQ(c.state.updates.open->version.number, 2);
  EXPECT_EQ(c.timers.at(step), c.config.grant_timeout);
}

TEST(MachineUpdate, ARankThatRegistersAnewBeginsTheUpdateAgain) {
  for (const bool hold : {false, true}) {
    Cluster c;
    c.Start(2, {{"a", 1}, {"b", 1}}, protocol::Landing::kShadow);
    const SessionId a = c.engines["a"][0];
    c.processes[a].grants = false;
    c.PublishAll(1, hold);
    c.Settle();
    ASSERT_TRUE(c.state.updates.open);
    c.RegisterAnew(a);  // It had not seen the request yet.
    c.processes[a].grants = true;
    c.Settle();
    EXPECT_EQ(c.Served(a), kFirst);
    EXPECT_EQ(c.Served(c.engines["b"][0]), kFirst);
    EXPECT_EQ(c.state.plan.epoch, 2U);
    ASSERT_EQ(c.processes[c.trainers[0]].done.size(), 1U) << "no failure was told";
    EXPECT_TRUE(c.LastDone().met_policy);
  }
}

TEST(MachineUpdate, ARankThatRegistersAnewIsOutOfAnUpdateThatHasStarted) {
  Cluster c;
  c.config.together = false;
  c.Start(1, {{"a", 1}, {"b", 1}});
  const SessionId a = c.engines["a"][0];
  c.processes[a].grants = false;
  c.processes[c.engines["b"][0]].switches = false;
  c.PublishAll(1);
  c.Settle();
  c.RegisterAnew(a);
  c.Settle();
  ASSERT_TRUE(c.state.updates.open) << "the other engine goes on";
  c.Fire(TimerKind::kStep, c.GroupOf("b"));
  c.Settle();
  ASSERT_FALSE(c.LastDone().engines.empty());
  EXPECT_THAT(c.LastDone().engines[0].reason.message(), HasSubstr("registered its tensors again"));
  EXPECT_EQ(c.LastDone().engines[0].reason.code(), Code::kUnavailable);
}

TEST(MachineUpdate, ASupersededUpdateCostsNoVersion) {
  Cluster c;
  c.Start(1, {{"a", 2}});
  c.PublishAll(1);
  c.Settle();
  c.processes[c.engines["a"][1]].grants = false;
  c.PublishAll(2);
  c.Settle();
  c.PublishAll(3);
  c.Settle();
  EXPECT_EQ(c.processes[c.trainers[0]].superseded, 1);
  EXPECT_EQ(c.state.roster.groups().back().last_error, Status::Ok());
  c.processes[c.engines["a"][1]].grants = true;
  c.PublishAll(4);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
  EXPECT_EQ(c.Served(c.engines["a"][0]).number, 4);
  EXPECT_EQ(c.Served(c.engines["a"][1]).number, 4);
  EXPECT_EQ(c.state.plan.epoch, 1U) << "the connections are whole";
}

TEST(MachineUpdate, CancelAbortsWhatIsNotYetCommitting) {
  Cluster c;
  c.Start(2, {{"a", 1}});
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(1, /*hold=*/true);
  c.Settle();
  c.processes[c.trainers[1]].outbox.push_back(protocol::Cancel{.number = 1});
  c.Settle();
  EXPECT_EQ(c.LastDone(0).reason.code(), Code::kCancelled);
  EXPECT_THAT(c.LastDone(0).reason.message(), HasSubstr("cancelled by trainer 1"));
  EXPECT_FALSE(c.state.updates.open) << "a cancelled version is not tried again, held or not";
}

TEST(MachineUpdate, CancelIsHeardFromANewSessionToo) {
  Cluster c;
  c.Start(2, {{"a", 1}});
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(1, /*hold=*/true);
  c.Settle();
  const SessionId again = c.Join(c.processes[c.trainers[1]].hello);  // Its stream broke; the process runs.
  c.Publish(again, 1, /*hold=*/true);
  c.processes[again].outbox.push_back(protocol::Cancel{.number = 1});
  c.Settle();
  EXPECT_EQ(c.LastDone(0).reason.code(), Code::kCancelled);
  EXPECT_FALSE(c.state.updates.open);
  EXPECT_EQ(c.Served(c.engines["a"][0]).number, -1);
}

TEST(MachineUpdate, CancelOfAnOlderRunLeavesTheNumberToTheNext) {
  Cluster c;
  c.Start(2, {{"a", 1}});
  Cluster::Process& rank = c.processes[c.engines["a"][0]];
  rank.grants = false;
  c.PublishAll(1);
  c.Settle();
  ASSERT_TRUE(c.state.updates.open);
  c.Join(ServesOf("d", {.run = 4, .number = 9, .origin = 6}));  // Of another controller: a run begins.
  ASSERT_EQ(c.state.runs.run.number, 5U);
  ASSERT_TRUE(c.state.updates.open);
  c.Do(MessageReceived{c.trainers[0], protocol::Cancel{.number = 1}});
  EXPECT_FALSE(c.state.updates.open);
  rank.grants = true;
  c.Settle();
  EXPECT_EQ(c.LastDone(0).reason.code(), Code::kCancelled);
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["a"][0]), (Version{.run = 5, .number = 1, .origin = kFirst.origin}));
}

TEST(MachineUpdate, CancelComesTooLateOnceCommitting) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.processes[c.engines["a"][0]].switches = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.trainers[0]].outbox.push_back(protocol::Cancel{.number = 1});
  c.Settle();
  ASSERT_TRUE(c.state.updates.open);
  EXPECT_EQ(c.state.engines.targets[0].step, EngineStep::kCommitting);
}

TEST(MachineUpdate, ALateEngineGetsTheHeldVersion) {
  Cluster c;
  c.Start(2, {{"a", 1}});
  c.processes[c.engines["a"][0]].shares = false;  // Only the trainers give.
  c.RegisterAnew(c.engines["a"][0]);
  c.Settle();
  c.PublishAll(1, /*hold=*/true);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
  const uint32_t epoch = c.state.plan.epoch;
  const SessionId late0 = c.JoinRank("late", 0, 2);
  c.Settle();
  EXPECT_EQ(c.state.plan.epoch, epoch) << "half an engine changes nothing";
  const SessionId late1 = c.JoinRank("late", 1, 2);
  c.Settle();
  EXPECT_EQ(c.Served(late0), kFirst);
  EXPECT_EQ(c.Served(late1), kFirst);
  EXPECT_EQ(c.state.plan.epoch, epoch + 1);
  EXPECT_EQ(c.LastDone().update.sequence, 1U);
  EXPECT_EQ(c.LastDone().update.attempt, 1U);
  EXPECT_EQ(c.LastDone().engines.size(), 1U) << "the other engine was not disturbed";
}

TEST(MachineUpdate, WithoutHoldALateEngineIsServedByAnother) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.PublishAll(1);
  c.Settle();
  const SessionId late = c.JoinRank("late", 0, 1);
  c.Settle();
  EXPECT_EQ(c.Served(late).number, 1) << "from the engine that serves it";
  c.PublishAll(2);
  c.Settle();
  EXPECT_EQ(c.Served(late).number, 2);
  EXPECT_EQ(c.LastDone().engines.size(), 2U);
}

TEST(MachineUpdate, AHeldVersionIsTriedThreeTimesInAnEngine) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(1, /*hold=*/true);
  for (int i = 0; i < 3; ++i) {
    c.Settle();
    ASSERT_TRUE(c.state.updates.open) << i;
    c.Fire(TimerKind::kStep, c.GroupOf("a"));
    if (i != 0) c.Fire(TimerKind::kStep, c.GroupOf("a"));  // At first only late.
  }
  c.Settle();
  EXPECT_FALSE(c.state.updates.open);
  EXPECT_EQ(c.processes[c.trainers[0]].done.size(), 3U);
}

TEST(MachineUpdate, AHeldVersionThatOpensFirstHasANumberToo) {
  Cluster c;
  c.Start(1, {{"a", 2}});
  c.KillAndNotice(c.engines["a"][0]);
  c.PublishAll(1, /*hold=*/true);
  c.Settle();
  EXPECT_FALSE(c.LastDone().met_policy) << "no engine is left";
  const SessionId again = c.JoinRank("a", 0, 2);
  c.Settle();
  EXPECT_EQ(c.Served(again), kFirst);
  // 0 would stand for the preparation of a plan, and a Failed of this update would not be heard.
  EXPECT_EQ(c.LastDone().update.sequence, 1U);
}

}  // namespace
}  // namespace weightcast::control
