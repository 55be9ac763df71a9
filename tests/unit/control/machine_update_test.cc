#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/control/simulator.h"

namespace weightcast::control {
namespace {

using ::testing::HasSubstr;
using wire::EngineState;

const Version kFirst{.run = 1, .number = 1};

struct Cluster : Simulator {
  std::vector<SessionId> trainers;
  std::map<std::string, std::vector<SessionId>> engines;

  void Start(uint32_t trainer_count, const std::map<std::string, uint32_t>& ranks,
             wire::Landing landing = wire::Landing::kInPlace) {
    for (uint32_t rank = 0; rank < trainer_count; ++rank)
      trainers.push_back(JoinTrainer(rank, trainer_count));
    for (const auto& [engine, count] : ranks)
      for (uint32_t rank = 0; rank < count; ++rank)
        engines[engine].push_back(JoinRank(engine, rank, count, landing));
    Settle();
    ASSERT_EQ(state.plan.phase, PlanPhase::kPrepared);
  }
  const wire::Done& LastDone(size_t trainer = 0) { return processes[trainers[trainer]].done.back(); }
};

TEST(MachineUpdate, OneTrainerOneEngine) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  EXPECT_EQ(c.state.plan.epoch, 1U);
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
  EXPECT_FALSE(c.state.update);
  const wire::Done& done = c.LastDone();
  EXPECT_TRUE(done.met_policy);
  EXPECT_EQ(done.version, kFirst);
  ASSERT_EQ(done.engines.size(), 1U);
  EXPECT_TRUE(done.engines[0].committed);
  ASSERT_EQ(done.senders.size(), 1U);
  EXPECT_EQ(done.senders[0].bytes, 100U);
  ASSERT_EQ(done.receivers.size(), 1U);
  EXPECT_EQ(done.receivers[0].bytes, 100U);
  EXPECT_EQ(done.update.sequence, 1U);
  EXPECT_EQ(c.processes[c.trainers[0]].releases, 1);
  EXPECT_EQ(c.state.committed, kFirst);
}

TEST(MachineUpdate, EnginesOfTwoRanksUnderBothPolicies) {
  for (const bool together : {true, false}) {
    Cluster c;
    c.config.together = together;
    c.Start(2, {{"a", 2}, {"b", 2}}, wire::Landing::kShadow);
    for (int64_t number = 1; number <= 5; ++number) {
      c.PublishAll(number);
      c.Settle();
      for (const auto& [name, ranks] : c.engines)
        for (const SessionId rank : ranks) EXPECT_EQ(c.Served(rank).number, number);
      EXPECT_TRUE(c.LastDone(1).met_policy);
      EXPECT_EQ(c.LastDone(1).receivers.size(), 4U);
    }
    EXPECT_EQ(c.state.plan.epoch, 1U) << "planned once";
    EXPECT_EQ(c.state.sequence, 5U);
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
  EXPECT_TRUE(c.state.update) << "the slow one still has time";
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
    EXPECT_EQ(ViewOf(c.config, c.state).engines[0].version, kFirst);
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
  EXPECT_EQ(c.state.update->targets[0].step, EngineStep::kGranted);
  EXPECT_EQ(ViewOf(c.config, c.state).phase, "granting");
  c.KillAndNotice(c.engines["b"][0]);
  c.Settle();
  EXPECT_EQ(c.state.update->targets[0].step, EngineStep::kWriting);
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
    ASSERT_TRUE(c.state.update);
    const TimerId step{TimerKind::kStep, c.GroupOf("late")};
    c.timers.at(step) = FromSeconds(7);  // What is left of it.
    c.Publish(c.trainers[0], 2);
    c.Settle();
    EXPECT_EQ(c.state.update->version, kFirst) << "not all have something newer";
    c.Publish(c.trainers[1], 2);
    c.Settle();
    ASSERT_TRUE(c.state.update);
    EXPECT_EQ(c.state.update->version.number, 2);
    EXPECT_EQ(c.processes[c.trainers[0]].superseded, 1);
    EXPECT_EQ(c.processes[c.trainers[1]].superseded, 1);
    EXPECT_EQ(c.Served(c.engines["a"][0]).number, together ? 1 : 2);
    EXPECT_EQ(c.timers.at(step), FromSeconds(7)) << "the late one has not the whole time anew";
    c.Fire(TimerKind::kStep, c.GroupOf("late"));
    c.Settle();
    EXPECT_EQ(c.Served(c.engines["a"][0]).number, 2);
    EXPECT_EQ(c.StateOf(late), EngineState::kJoining);
    EXPECT_EQ(c.processes[c.trainers[0]].published, (std::map<int64_t, bool>{{1, true}, {2, true}}));
  }
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
  EXPECT_EQ(c.state.groups.back().last_error, Status::Ok());
  c.processes[c.engines["a"][1]].grants = true;
  c.PublishAll(4);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
  EXPECT_EQ(c.Served(c.engines["a"][0]).number, 4);
  EXPECT_EQ(c.Served(c.engines["a"][1]).number, 4);
  EXPECT_EQ(c.state.plan.epoch, 1U) << "the connections are whole";
}

TEST(MachineUpdate, ATrainerThatDiesAbortsAndIsNamed) {
  Cluster c;
  c.Start(2, {{"a", 2}, {"b", 1}});
  c.processes[c.trainers[1]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.trainers[1]);
  c.Settle();
  EXPECT_FALSE(c.state.update);
  EXPECT_FALSE(c.LastDone().met_policy);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("trainer 1 is lost: not heard of"));
  EXPECT_EQ(c.processes[c.trainers[0]].aborts, 1);
  EXPECT_EQ(c.processes[c.trainers[0]].lost.size(), 1U);
  for (const auto& [name, ranks] : c.engines) {
    for (const SessionId rank : ranks) {
      EXPECT_EQ(c.StateOf(rank), EngineState::kFailed) << "in_place and granted: the old version is gone";
      EXPECT_EQ(c.processes[rank].lost.at(0).name.rank, 1U);
    }
  }
  // What the survivor publishes now fails at once and says why.
  c.Publish(c.trainers[0], 2);
  c.Settle();
  EXPECT_EQ(c.LastDone().version.number, 2);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("trainer 1 is lost"));
  // A new process in its place: a new run, and all is well again.
  c.trainers[1] = c.JoinTrainer(1, 2);
  c.Settle();
  EXPECT_EQ(c.processes[c.trainers[0]].run, 2U) << "told by the plan";
  c.PublishAll(1);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
  EXPECT_EQ(c.Served(c.engines["a"][1]), (Version{.run = 2, .number = 1}));
}

TEST(MachineUpdate, ShadowGoesOnWithTheOldVersion) {
  Cluster c;
  c.Start(2, {{"a", 1}}, wire::Landing::kShadow);
  c.PublishAll(1);
  c.Settle();
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(2);
  c.Settle();
  c.KillAndNotice(c.trainers[0]);
  c.Settle();
  EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kServing);
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
  EXPECT_EQ(c.state.workers.back().state, EngineState::kServing);
}

TEST(MachineUpdate, ATrainerThatDiesAfterReleaseIsNotMissed) {
  Cluster c;
  c.Start(2, {{"a", 1}});
  c.processes[c.engines["a"][0]].switches = false;
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.processes[c.trainers[0]].releases, 1);
  c.KillAndNotice(c.trainers[1]);
  c.Settle();
  ASSERT_TRUE(c.state.update);
  c.processes[c.engines["a"][0]].committed = true;
  c.processes[c.engines["a"][0]].outbox.push_back(wire::Committed{.update = c.state.update->id});
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
  EXPECT_TRUE(c.LastDone().met_policy);
}

TEST(MachineUpdate, ARankThatDiesTakesOnlyItsEngineOut) {
  for (const bool together : {true, false}) {
    Cluster c;
    c.config.together = together;
    c.Start(2, {{"a", 2}, {"b", 2}});
    c.processes[c.engines["a"][1]].grants = false;
    c.PublishAll(1);
    c.Settle();
    c.KillAndNotice(c.engines["a"][1]);
    c.Settle();
    EXPECT_EQ(c.processes[c.trainers[0]].aborts, 0);
    EXPECT_EQ(c.Served(c.engines["b"][0]), kFirst);
    EXPECT_EQ(c.Served(c.engines["b"][1]), kFirst);
    EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kJoining) << "nobody has written to it";
    EXPECT_EQ(c.LastDone().met_policy, !together);
    EXPECT_THAT(c.LastDone().engines[0].reason.message(), HasSubstr("engine a rank 1 is lost"));
    // Whole again, it gets the next version.
    c.engines["a"][1] = c.JoinRank("a", 1, 2);
    c.Settle();
    c.PublishAll(2);
    c.Settle();
    EXPECT_TRUE(c.LastDone().met_policy);
    EXPECT_EQ(c.Served(c.engines["a"][0]).number, 2);
    EXPECT_EQ(c.Served(c.engines["a"][1]).number, 2);
  }
}

TEST(MachineUpdate, TheDyingRanksTransfersAreStopped) {
  Cluster c;
  c.Start(1, {{"a", 1}, {"b", 1}});
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.engines["a"][0]);
  c.Settle();
  EXPECT_EQ(c.processes[c.trainers[0]].stops, 1);
  EXPECT_TRUE(c.state.update) << "b goes on";
}

TEST(MachineUpdate, ARankThatDiesBetweenServeAndServingDoesNotUndoTheCommit) {
  Cluster c;
  c.Start(1, {{"a", 2}});
  c.processes[c.engines["a"][1]].switches = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.engines["a"][1]].stuck = true;  // Will not hear Serve.
  c.processes[c.engines["a"][1]].committed = true;
  c.Do(Said{c.engines["a"][1], wire::Committed{.update = c.state.update->id}});
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
  c.KillAndNotice(c.engines["a"][1]);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
}

TEST(MachineUpdate, TheLastEngineDyingEndsTheUpdateAndFailsTheNextAtOnce) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.engines["a"][0]);
  c.Settle();
  EXPECT_FALSE(c.state.update);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("engine a rank 0 is lost"));
  c.PublishAll(2);
  c.Settle();
  EXPECT_EQ(c.LastDone().version.number, 2);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("no engine is left"));
}

TEST(MachineUpdate, NotSwitchingInTimeIsLikeDeathForThisUpdate) {
  Cluster c;
  c.Start(1, {{"a", 1}, {"b", 1}});
  c.processes[c.engines["a"][0]].switches = false;
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["b"][0]), kFirst);
  c.Fire(TimerKind::kStep, c.GroupOf("a"));
  c.Settle();
  EXPECT_THAT(c.LastDone().engines[0].reason.message(), HasSubstr("has not switched"));
  EXPECT_TRUE(c.LastDone().engines[1].committed);
  EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kFailed);
  // The next version reaches it again.
  c.processes[c.engines["a"][0]].switches = true;
  c.PublishAll(2);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
}

TEST(MachineUpdate, AnEngineThatSwitchesInItsCallMayComeLate) {
  Cluster c;
  c.config.grant_timeout = FromSeconds(600);
  c.config.commit_timeout = FromSeconds(30);
  c.Start(1, {{"a", 1}, {"b", 1}}, wire::Landing::kShadow);
  c.processes[c.engines["a"][0]].switches = false;
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.timers.at({TimerKind::kStep, c.GroupOf("a")}), FromSeconds(630));
  c.Fire(TimerKind::kStep, c.GroupOf("a"));
  EXPECT_THAT(
      c.state.groups.at(1).last_error.message(),
      HasSubstr("is its engine in receive() or wait()? See grant_timeout and commit_timeout (630 s)"));

  Cluster in_place;
  in_place.Start(1, {{"a", 1}});
  in_place.processes[in_place.engines["a"][0]].switches = false;
  in_place.PublishAll(1);
  in_place.Settle();
  EXPECT_EQ(in_place.timers.at({TimerKind::kStep, in_place.GroupOf("a")}), in_place.config.commit_timeout);
}

TEST(MachineUpdate, ABrokenRoadTakesOneEngineOutAndTheNextEpochMendsIt) {
  Cluster c;
  c.Start(2, {{"a", 1}, {"b", 1}});
  c.processes[c.trainers[1]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.trainers[1]].outbox.push_back(wire::Failed{
      .update = c.state.update->id, .destination = 0, .reason = {Code::kUnavailable, "no lane is left"}});
  c.Settle();
  ASSERT_TRUE(c.state.update);
  EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kFailed);
  c.processes[c.trainers[1]].outbox.push_back(wire::Failed{
      .update = c.state.update->id, .destination = 1, .reason = {Code::kUnavailable, "no lane is left"}});
  c.Settle();
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("trainer 1: no lane is left"));
  EXPECT_EQ(c.state.plan.epoch, 2U);
  c.processes[c.trainers[1]].writes = true;
  c.PublishAll(2);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
}

TEST(MachineUpdate, ATrainersOwnFailureAborts) {
  Cluster c;
  c.Start(2, {{"a", 1}, {"b", 1}});
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.trainers[0]].outbox.push_back(
      wire::Failed{.update = c.state.update->id, .destination = -1, .reason = {Code::kExhausted, "staging"}});
  c.Settle();
  EXPECT_FALSE(c.state.update);
  EXPECT_THAT(c.LastDone(1).reason.message(), HasSubstr("trainer 0: staging"));
}

TEST(MachineUpdate, AWrongChecksumTakesTheEngineOut) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.engines["a"][0]].outbox.push_back(wire::Failed{
      .update = c.state.update->id, .destination = -1, .reason = {Code::kCorrupt, "checksum differs"}});
  c.Settle();
  EXPECT_EQ(c.LastDone().reason.code(), Code::kCorrupt);
  EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kFailed) << "it was told to abort";
}

TEST(MachineUpdate, AUserWhoGivesUpThePhasesTakesTheEngineOut) {
  Cluster c;
  c.Start(1, {{"a", 2}});
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(1);
  c.Settle();
  auto& rank = c.processes[c.engines["a"][0]];
  rank.open.clear();
  rank.outbox.push_back(wire::Aborted{.update = c.state.update->id, .lost = true});
  c.Settle();
  EXPECT_FALSE(c.state.update);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("engine a rank 0 gave the update up"));
  EXPECT_EQ(rank.aborts, 0) << "it has fenced already";
  EXPECT_EQ(c.processes[c.engines["a"][1]].aborts, 1);
}

TEST(MachineUpdate, CancelAbortsWhatIsNotYetCommitting) {
  Cluster c;
  c.Start(2, {{"a", 1}});
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(1, /*hold=*/true);
  c.Settle();
  c.processes[c.trainers[1]].outbox.push_back(wire::Cancel{.number = 1});
  c.Settle();
  EXPECT_EQ(c.LastDone(0).reason.code(), Code::kCancelled);
  EXPECT_THAT(c.LastDone(0).reason.message(), HasSubstr("cancelled by trainer 1"));
  EXPECT_FALSE(c.state.update) << "a cancelled version is not tried again, held or not";
}

TEST(MachineUpdate, CancelComesTooLateOnceCommitting) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.processes[c.engines["a"][0]].switches = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.trainers[0]].outbox.push_back(wire::Cancel{.number = 1});
  c.Settle();
  ASSERT_TRUE(c.state.update);
  EXPECT_EQ(c.state.update->targets[0].step, EngineStep::kCommitting);
}

TEST(MachineUpdate, ALateEngineGetsTheHeldVersion) {
  Cluster c;
  c.Start(2, {{"a", 1}});
  c.PublishAll(1, /*hold=*/true);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
  const SessionId late0 = c.JoinRank("late", 0, 2);
  c.Settle();
  EXPECT_EQ(c.state.plan.epoch, 1U) << "half an engine changes nothing";
  const SessionId late1 = c.JoinRank("late", 1, 2);
  c.Settle();
  EXPECT_EQ(c.Served(late0), kFirst);
  EXPECT_EQ(c.Served(late1), kFirst);
  EXPECT_EQ(c.state.plan.epoch, 2U);
  EXPECT_EQ(c.LastDone().update.sequence, 1U);
  EXPECT_EQ(c.LastDone().update.attempt, 1U);
  EXPECT_EQ(c.LastDone().engines.size(), 1U) << "the other engine was not disturbed";
}

TEST(MachineUpdate, WithoutHoldALateEngineWaitsForTheNextVersion) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.PublishAll(1);
  c.Settle();
  const SessionId late = c.JoinRank("late", 0, 1);
  c.Settle();
  EXPECT_EQ(c.Served(late).number, -1);
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
    ASSERT_TRUE(c.state.update) << i;
    c.Fire(TimerKind::kStep, c.GroupOf("a"));
  }
  c.Settle();
  EXPECT_FALSE(c.state.update);
  EXPECT_EQ(c.processes[c.trainers[0]].done.size(), 3U);
}

TEST(MachineUpdate, ARankThatHasNotFencedIsNotGrantedAnew) {
  Cluster c;
  c.Start(2, {{"a", 1}, {"b", 1}});
  c.processes[c.engines["a"][0]].fences = false;
  c.processes[c.trainers[1]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.trainers[1]].outbox.push_back(
      wire::Failed{.update = c.state.update->id, .destination = -1, .reason = {Code::kInternal, "x"}});
  c.processes[c.trainers[1]].writes = true;
  c.PublishAll(2);
  c.Settle();
  EXPECT_FALSE(c.state.update) << "waits for the fence";
  c.Fire(TimerKind::kFence);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["b"][0]).number, 2) << "others do not wait for ever";
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("engine a rank 0 still fences off update 1.0"));
  // Once fenced, it takes part again.
  c.processes[c.engines["a"][0]].outbox.push_back(wire::Aborted{
      .update = {.term = c.config.term, .epoch = 1, .sequence = 1, .attempt = 0}, .lost = true});
  c.Settle();
  c.PublishAll(3);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
}

TEST(MachineUpdate, StaleMessagesAreDropped) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.PublishAll(1);
  c.Settle();
  const wire::UpdateId old = c.LastDone().update;
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(2);
  c.Settle();
  const MachineState before = c.state;
  wire::UpdateId other_term = c.state.update->id;
  other_term.term.id = 1;
  for (const wire::UpdateId& id : {old, other_term}) {
    c.Do(Said{c.engines["a"][0], wire::Granted{.update = id, .grants = {}}});
    c.Do(Said{c.engines["a"][0], wire::Ready{.update = id}});
    c.Do(Said{c.engines["a"][0], wire::Committed{.update = id}});
    c.Do(Said{c.engines["a"][0], wire::Serving{.update = id, .version = kFirst}});
    c.Do(Said{c.engines["a"][0], wire::Aborted{.update = id, .lost = true}});
    c.Do(Said{c.trainers[0], wire::Failed{.update = id, .destination = 0, .reason = {Code::kInternal, "x"}}});
  }
  EXPECT_TRUE(c.state == before);
}

TEST(MachineUpdate, AheadOfTurnCostsTheEngineTheUpdate) {
  for (int what = 0; what < 2; ++what) {
    Cluster c;
    c.Start(1, {{"a", 1}});
    c.processes[c.engines["a"][0]].grants = false;
    c.PublishAll(1);
    c.Settle();
    const wire::UpdateId id = c.state.update->id;
    const wire::WorkerMessage messages[] = {wire::Ready{.update = id}, wire::Committed{.update = id}};
    c.Do(Said{c.engines["a"][0], messages[what]});
    c.Settle();
    EXPECT_EQ(c.LastDone().reason.code(), Code::kProtocol);
    EXPECT_EQ(c.state.committed.number, -1);
  }
}

TEST(MachineUpdate, GrantsForTrainersThatDoNotExistAreRefused) {
  for (const uint32_t trainer : {1U, 0U}) {
    Cluster c;
    c.Start(1, {{"a", 1}});
    c.processes[c.engines["a"][0]].grants = false;
    c.PublishAll(1);
    c.Settle();
    wire::Granted granted{.update = c.state.update->id, .grants = {{.trainer = 0, .slot = 1, .id = 5}}};
    granted.grants.push_back({.trainer = trainer, .slot = 2, .id = 6});
    c.Do(Said{c.engines["a"][0], granted});
    c.Settle();
    EXPECT_EQ(c.LastDone().reason.code(), Code::kProtocol);
  }
}

TEST(MachineUpdate, ServingWhatItWasNotToldEndsTheSession) {
  Cluster c;
  c.Start(1, {{"a", 2}});
  c.processes[c.engines["a"][1]].switches = false;
  c.PublishAll(1);
  c.Settle();
  c.Do(Said{c.engines["a"][0], wire::Serving{.update = c.state.update->id, .version = kFirst}});
  EXPECT_TRUE(c.processes[c.engines["a"][0]].refused);
  EXPECT_EQ(c.processes[c.engines["a"][0]].refusal.code(), Code::kProtocol);
}

TEST(MachineUpdate, AMessageOfTheOtherSideEndsTheSession) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.Do(Said{c.engines["a"][0], wire::Published{.number = 1}});
  EXPECT_EQ(c.processes[c.engines["a"][0]].refusal.code(), Code::kProtocol);
  c.Do(Said{c.trainers[0], wire::Ready{}});
  EXPECT_EQ(c.processes[c.trainers[0]].refusal.code(), Code::kProtocol);
}

TEST(MachineUpdate, AStreamThatComesBackChangesNothing) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(1);
  c.Settle();
  const MachineState before = c.state;
  c.Do(StreamBroken{c.engines["a"][0]});
  EXPECT_TRUE(c.state.update);
  c.Do(Resumed{c.engines["a"][0]});
  EXPECT_TRUE(c.state == before);
}

}  // namespace
}  // namespace weightcast::control
