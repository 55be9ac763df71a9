#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/control/cluster.h"

namespace weightcast::control {
namespace {

using protocol::EngineState;
using ::testing::HasSubstr;

TEST(MachineRepair, AReplicaFinishesWhatADeadTrainerBegan) {
  for (const protocol::Landing landing : {protocol::Landing::kInPlace, protocol::Landing::kShadow}) {
    Cluster c;
    c.sharded = false;
    c.Start(2, {{"a", 2}, {"b", 1}}, landing);
    c.processes[c.trainers[0]].writes = false;
    c.PublishAll(1);
    c.Settle();
    ASSERT_EQ(c.Phase(), "writing");
    c.KillAndNotice(c.trainers[0]);
    c.Settle();
    for (const auto& [name, ranks] : c.engines)
      for (const SessionId rank : ranks) EXPECT_EQ(c.Served(rank), kFirst);
    const protocol::Done& done = c.LastDone(1);
    EXPECT_TRUE(done.met_policy);
    EXPECT_EQ(done.update.attempt, 1U);
    ASSERT_EQ(done.senders.size(), 2U);
    EXPECT_EQ(done.senders[0].bytes, 0U);
    EXPECT_EQ(done.senders[1].bytes, 300U);
    EXPECT_EQ(c.processes[c.trainers[1]].done.size(), 1U);
    EXPECT_EQ(c.processes[c.trainers[1]].releases, 1);
  }
}

TEST(MachineRepair, AnEngineIsNotAskedForWhatItServesButHoldsNoMoreInItsSpareBuffer) {
  Cluster c;
  c.Start(1, {{"a", 1}, {"b", 1}}, protocol::Landing::kShadow);
  c.PublishAll(1);
  c.Settle();
  const SessionId slow = c.engines["a"][0];
  c.processes[slow].deaf = true;
  c.PublishAll(2);
  c.Settle();
  c.Do(MessageReceived{c.trainers[0], protocol::Cancel{2}});
  c.Settle();
  for (const auto& [name, ranks] : c.engines) EXPECT_EQ(c.Served(ranks[0]), kFirst);
  const size_t plans = c.plans.size();
  const SessionId late = c.JoinRank("c", 0, 1, protocol::Landing::kShadow);
  c.Settle();
  EXPECT_FALSE(c.state.updates.open) << "a was granted again, and b has the bytes of version 2 there";
  EXPECT_LE(c.plans.size(), plans + 1);
  c.processes[slow].deaf = false;
  c.PublishAll(3);
  c.Settle();
  EXPECT_EQ(c.Served(late).number, 3);
}

TEST(MachineRepair, AnEngineThatHasEveryByteGivesThemWhenAllTrainersDie) {
  for (const bool together : {true, false}) {
    Cluster c;
    c.config.together = together;
    c.Start(2, {{"a", 2}, {"b", 2}}, protocol::Landing::kShadow);
    const SessionId late = c.engines["b"][1];
    c.processes[late].deaf = true;
    c.PublishAll(1);
    c.Settle();
    c.KillAndNotice(c.trainers[0]);
    c.KillAndNotice(c.trainers[1]);
    c.processes[late].deaf = false;
    c.Settle();
    for (const auto& [name, ranks] : c.engines)
      for (const SessionId rank : ranks) EXPECT_EQ(c.Served(rank), kFirst) << name;
    const MakePlan& repair = c.plans.at(2);
    EXPECT_TRUE(repair.from_engines);
    EXPECT_EQ(repair.sources, c.engines["a"]);
    ASSERT_EQ(repair.engines.size(), 1U);
    EXPECT_EQ(repair.engines[0], c.engines["b"]);
    EXPECT_FALSE(c.started.contains({{c.config.term, 2, 1, 1}, c.engines["b"][0]}))
        << "a rank that has every byte is not sent them again";
  }
}

TEST(MachineRepair, WithoutAnotherHolderTheUpdateAbortsAndNamesTheDead) {
  Cluster c;
  c.Start(2, {{"a", 1}, {"b", 1}});
  c.processes[c.trainers[1]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.trainers[1]);
  c.Settle();
  EXPECT_FALSE(c.LastDone().met_policy);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("trainer 1 is lost"));
  EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kFailed);
}

/// Trainers 0 and 1 hold the same. Engine a has every byte, engine b waits for its own.
struct HalfReady : Cluster {
  SessionId late = 0;
  void Begin() {
    sharded = false;
    Start(2, {{"a", 1}, {"b", 1}}, protocol::Landing::kShadow);
    late = engines["b"][0];
    processes[late].deaf = true;
    PublishAll(1);
    Settle();
    ASSERT_EQ(StateOf(engines["a"][0]), EngineState::kReady);
  }
  void Fail(Code code) {
    processes[trainers[0]].outbox.push_back(
        protocol::Failed{.update = state.updates.open->id, .reason = {code, "the file changed"}});
    Settle();
    processes[late].deaf = false;
    Settle();
  }
};

TEST(MachineRepair, WhatAFailedSourceHasSentIsNotCommitted) {
  HalfReady c;
  ASSERT_NO_FATAL_FAILURE(c.Begin());
  c.Fail(Code::kCorrupt);
  EXPECT_FALSE(c.LastDone(1).met_policy) << "though trainer 1 and engine a have the bytes";
  EXPECT_THAT(c.LastDone(1).reason.message(), HasSubstr("trainer 0: the file changed"));
  for (const char* engine : {"a", "b"}) EXPECT_EQ(c.Served(c.engines[engine][0]), Version());
  c.PublishAll(2);
  c.Settle();
  for (const char* engine : {"a", "b"}) EXPECT_EQ(c.Served(c.engines[engine][0]).number, 2);
}

TEST(MachineRepair, WhoHasTheVersionNoMoreIsReplaced) {
  HalfReady c;
  ASSERT_NO_FATAL_FAILURE(c.Begin());
  c.Fail(Code::kCancelled);
  EXPECT_TRUE(c.LastDone(1).met_policy);
  for (const char* engine : {"a", "b"}) EXPECT_EQ(c.Served(c.engines[engine][0]), kFirst);
}

TEST(MachineRepair, AFailureOfAnEarlierAttemptCountsToo) {
  HalfReady c;
  ASSERT_NO_FATAL_FAILURE(c.Begin());
  const protocol::UpdateId first = c.state.updates.open->id;
  c.processes[c.late].deaf = false;
  c.processes[c.trainers[0]].writes = c.processes[c.trainers[1]].writes = false;
  c.processes[c.late].outbox.push_back(
      protocol::Failed{.update = first, .reason = {Code::kUnavailable, "cut"}, .source = 1});
  c.Settle();
  ASSERT_TRUE(c.state.updates.open);
  ASSERT_NE(c.state.updates.open->id, first) << "tried again from another holder";
  c.processes[c.trainers[0]].outbox.push_back(
      protocol::Failed{.update = first, .reason = {Code::kCorrupt, "the file changed"}});
  c.Settle();
  EXPECT_FALSE(c.state.updates.open);
  EXPECT_EQ(c.Served(c.engines["a"][0]), Version());
}

TEST(MachineRepair, AFailedPathIsGoneAround) {
  for (const bool sharded : {false, true}) {
    Cluster c;
    c.sharded = sharded;
    c.Start(2, {{"a", 1}, {"b", 1}}, protocol::Landing::kShadow);
    c.processes[c.trainers[1]].writes = false;
    c.PublishAll(1);
    c.Settle();
    c.processes[c.engines["a"][0]].outbox.push_back(protocol::Failed{
        .update = c.state.updates.open->id, .reason = {Code::kUnavailable, "cut"}, .source = 1});
    c.processes[c.trainers[1]].writes = true;
    c.Settle();
    EXPECT_EQ(c.plans.at(2).sources, std::vector<SessionId>{c.trainers[0]});
    EXPECT_EQ(c.plans.at(2).engines.size(), 2U) << "all who lack bytes are planned together";
    const std::vector<SessionId> sources = sharded ? c.trainers : std::vector<SessionId>{c.trainers[0]};
    EXPECT_EQ(c.plans.at(sharded ? 3 : 2).sources, sources) << "all of them, over new connections, come last";
    for (const char* engine : {"a", "b"}) EXPECT_EQ(c.Served(c.engines[engine][0]), kFirst);
    EXPECT_TRUE(c.LastDone().met_policy);
  }
}

TEST(MachineRepair, APeerSourceWhoseOwnUpdateIsAbortedGivesNoMore) {
  Cluster c;
  c.Start(1, {{"a", 1}, {"b", 1}, {"c", 1}});
  const SessionId a = c.engines["a"][0];
  const SessionId late = c.engines["c"][0];
  c.processes[late].deaf = true;
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.trainers[0]);
  c.Settle();  // a and b give to c.
  ASSERT_EQ(c.Phase(), "writing");
  c.processes[a].outbox.push_back(protocol::Aborted{.update = c.state.ranks.receivers[0].id, .lost = true});
  c.processes[a].state = EngineState::kFailed;
  c.processes[late].deaf = false;
  c.Settle();
  EXPECT_EQ(c.plans.rbegin()->second.sources, c.engines["b"]);
  EXPECT_EQ(c.Served(late), kFirst);
}

TEST(MachineRepair, EnginesWithBytesOfTwoControllersDoNotGiveTogether) {
  Cluster c;
  c.Start(1, {{"y", 1}});
  c.PublishAll(1);
  c.Settle();
  protocol::Hello foreign;
  foreign.name = {.role = protocol::Role::kInference, .engine = "x", .rank = 0};
  foreign.world_size = 1;
  foreign.state = EngineState::kServing;
  foreign.version = {.run = 1, .number = 1, .origin = 5};
  c.Join(foreign);
  EXPECT_EQ(c.state.runs.run.number, 2U);
  const SessionId joiner = c.JoinRank("z", 0, 1);
  c.Settle();
  EXPECT_EQ(c.Served(joiner), kFirst);
  EXPECT_EQ(c.state.plan.sources.size(), 1U);
}

TEST(MachineRepair, ManyTrainersMayDieAtOnce) {
  Cluster c;
  c.sharded = false;
  c.Start(12, {{"a", 1}});
  for (size_t i = 0; i + 1 < c.trainers.size(); ++i) c.processes[c.trainers[i]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.engines["a"][0]].fences = false;
  for (size_t i = 0; i + 1 < c.trainers.size(); ++i) c.KillAndNotice(c.trainers[i]);
  c.FenceLate(c.engines["a"][0]);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
}

TEST(MachineRepair, TheNextHolderIsTriedWhenAPeerSourceDies) {
  Cluster c;
  c.config.together = false;
  c.Start(1, {{"a", 1}, {"b", 1}, {"late", 1}}, protocol::Landing::kShadow);
  const SessionId late = c.engines["late"][0];
  c.processes[late].deaf = true;
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.trainers[0]);
  c.processes[c.engines["a"][0]].writes = false;
  c.processes[late].deaf = false;
  c.Settle();
  ASSERT_EQ(c.Phase(), "writing");
  c.KillAndNotice(c.engines["a"][0]);
  c.Settle();
  EXPECT_EQ(c.Served(late), kFirst);
  EXPECT_EQ(c.plans.rbegin()->second.sources, c.engines["b"]);
}

TEST(MachineRepair, AJoinerIsServedByEnginesWithoutATrainer) {
  for (const bool dead : {false, true}) {
    Cluster c;
    c.Start(2, {{"a", 2}, {"b", 2}});
    c.PublishAll(1);
    c.Settle();
    const int releases = c.processes[c.trainers[0]].releases;
    for (const SessionId trainer : c.trainers) {
      c.processes[trainer].writes = false;
      if (dead) c.KillAndNotice(trainer);
    }
    const std::vector<SessionId> joiner = {c.JoinRank("c", 0, 2), c.JoinRank("c", 1, 2)};
    c.Settle();
    for (const SessionId rank : joiner) EXPECT_EQ(c.Served(rank), kFirst);
    for (const auto& [name, ranks] : c.engines)
      for (const SessionId rank : ranks) EXPECT_EQ(c.processes[rank].releases, 1) << "it may be asked again";
    EXPECT_EQ(c.processes[c.trainers[0]].done.size(), 1U) << "it is no business of theirs";
    if (dead) continue;
    EXPECT_EQ(c.processes[c.trainers[0]].releases, releases);
    for (const SessionId trainer : c.trainers) c.processes[trainer].writes = true;
    c.PublishAll(2);
    c.Settle();
    EXPECT_EQ(c.Served(joiner[0]).number, 2) << "and takes part in the next update";
  }
}

TEST(MachineRepair, JoinersAreChained) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.trainers[0]);
  std::vector<SessionId> joiners;
  for (const char* name : {"b", "c", "d"}) joiners.push_back(c.JoinRank(name, 0, 1));
  c.Settle();
  for (const SessionId rank : joiners) EXPECT_EQ(c.Served(rank), kFirst);
  std::vector<size_t> holders;
  for (const auto& [epoch, plan] : c.plans) {
    if (!plan.from_engines) continue;
    holders.push_back(plan.sources.size());
    EXPECT_LE(plan.engines.size(), plan.sources.size()) << "nobody gives to two at a time";
  }
  EXPECT_EQ(holders, (std::vector<size_t>{1, 2}));
}

TEST(MachineRepair, AnEngineThatKeepsItsTensorsToItselfIsNoHolder) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.processes[c.engines["a"][0]].shares = false;
  c.RegisterAnew(c.engines["a"][0]);
  c.Settle();
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.trainers[0]);
  const SessionId joiner = c.JoinRank("b", 0, 1);
  c.Settle();
  EXPECT_EQ(c.StateOf(joiner), EngineState::kJoining);
}

TEST(MachineRepair, AnAbsentEngineKeepsNobodyFromTheServedVersion) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.PublishAll(1);
  c.Settle();
  const SessionId absent = c.JoinRank("b", 0, 1);
  c.processes[absent].grants = false;
  c.Settle();
  ASSERT_EQ(c.Phase(), "granting");
  const SessionId joiner = c.JoinRank("c", 0, 1);
  c.Settle();
  EXPECT_EQ(c.timers.at({TimerKind::kStep, c.GroupOf("b")}), c.config.lease);
  c.Fire(TimerKind::kStep, c.GroupOf("b"));
  c.Settle();
  EXPECT_EQ(c.Served(joiner), kFirst);
  c.PublishAll(2);
  c.Settle();
  EXPECT_EQ(c.Phase(), "granting") << "of version 2, which all switch to together";
  c.GrantLate(absent);
  c.Settle();
  EXPECT_EQ(c.Served(joiner).number, 2);
  EXPECT_EQ(c.Served(absent).number, 2);
}

}  // namespace
}  // namespace weightcast::control
