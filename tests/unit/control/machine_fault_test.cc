#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/control/cluster.h"

namespace weightcast::control {
namespace {

using protocol::EngineState;
using ::testing::HasSubstr;

TEST(MachineFault, ATrainerThatDiesAbortsAndIsNamed) {
  Cluster c;
  c.Start(2, {{"a", 2}, {"b", 1}});
  c.processes[c.trainers[1]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.trainers[1]);
  c.Settle();
  EXPECT_FALSE(c.state.updates.open);
  EXPECT_FALSE(c.LastDone().met_policy);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("trainer 1 is lost: missed heartbeats"));
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
  EXPECT_EQ(c.processes[c.trainers[0]].run.number, 2U) << "told by the plan";
  c.PublishAll(1);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
  EXPECT_EQ(c.Served(c.engines["a"][1]), (Version{.run = 2, .number = 1, .origin = kFirst.origin}));
}

TEST(MachineFault, ShadowGoesOnWithTheOldVersion) {
  Cluster c;
  c.Start(2, {{"a", 1}}, protocol::Landing::kShadow);
  c.PublishAll(1);
  c.Settle();
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(2);
  c.Settle();
  c.KillAndNotice(c.trainers[0]);
  c.Settle();
  EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kServing);
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
  EXPECT_EQ(c.state.roster.workers().back().state, EngineState::kServing);
}

TEST(MachineFault, ATrainerThatDiesAfterReleaseIsNotMissed) {
  Cluster c;
  c.Start(2, {{"a", 1}});
  c.processes[c.engines["a"][0]].switches = false;
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.processes[c.trainers[0]].releases, 1);
  c.KillAndNotice(c.trainers[1]);
  c.Settle();
  ASSERT_TRUE(c.state.updates.open);
  c.processes[c.engines["a"][0]].committed = true;
  c.processes[c.engines["a"][0]].outbox.push_back(protocol::Committed{.update = c.state.updates.open->id});
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
  EXPECT_TRUE(c.LastDone().met_policy);
}

TEST(MachineFault, ARankThatDiesTakesOnlyItsEngineOut) {
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

TEST(MachineFault, TheDyingRanksTransfersAreStopped) {
  Cluster c;
  c.Start(1, {{"a", 1}, {"b", 1}});
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.engines["a"][0]);
  c.Settle();
  EXPECT_EQ(c.processes[c.trainers[0]].stops, 1);
  EXPECT_TRUE(c.state.updates.open) << "b goes on";
}

TEST(MachineFault, ARankThatDiesBetweenServeAndServingDoesNotUndoTheCommit) {
  Cluster c;
  c.Start(1, {{"a", 2}});
  c.processes[c.engines["a"][1]].switches = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.engines["a"][1]].stuck = true;  // Will not hear Serve.
  c.processes[c.engines["a"][1]].committed = true;
  c.Do(MessageReceived{c.engines["a"][1], protocol::Committed{.update = c.state.updates.open->id}});
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
  c.KillAndNotice(c.engines["a"][1]);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
  EXPECT_EQ(c.Served(c.engines["a"][0]), kFirst);
}

TEST(MachineFault, TheLastEngineDyingEndsTheUpdateAndFailsTheNextAtOnce) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.engines["a"][0]);
  c.Settle();
  EXPECT_FALSE(c.state.updates.open);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("engine a rank 0 is lost"));
  c.PublishAll(2);
  c.Settle();
  EXPECT_EQ(c.LastDone().version.number, 2);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("no engine is left"));
}

TEST(MachineFault, NotSwitchingInTimeIsLikeDeathForThisUpdate) {
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

TEST(MachineFault, AnEngineThatSwitchesInItsCallMayComeLate) {
  Cluster c;
  c.config.grant_timeout = FromSeconds(600);
  c.config.commit_timeout = FromSeconds(30);
  c.Start(1, {{"a", 1}, {"b", 1}}, protocol::Landing::kShadow);
  c.processes[c.engines["a"][0]].switches = false;
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.timers.at({TimerKind::kStep, c.GroupOf("a")}), FromSeconds(630));
  c.Fire(TimerKind::kStep, c.GroupOf("a"));
  EXPECT_THAT(c.state.roster.groups().at(1).last_error.message(),
              HasSubstr("let its engine call receive() or wait(), or raise settings grant_timeout and "
                        "commit_timeout (630 s)"));

  Cluster in_place;
  in_place.Start(1, {{"a", 1}});
  in_place.processes[in_place.engines["a"][0]].switches = false;
  in_place.PublishAll(1);
  in_place.Settle();
  EXPECT_EQ(in_place.timers.at({TimerKind::kStep, in_place.GroupOf("a")}), in_place.config.commit_timeout);
}

TEST(MachineFault, APathThatKeepsFailingTakesOneEngineOut) {
  Cluster c;
  c.Start(2, {{"a", 1}, {"b", 1}});
  c.processes[c.trainers[1]].writes = false;
  c.PublishAll(1);
  c.Settle();
  for (int i = 0; i < 100 && c.StateOf(c.engines["a"][0]) != EngineState::kFailed; ++i) {
    ASSERT_TRUE(c.state.updates.open);
    c.processes[c.trainers[1]].outbox.push_back(protocol::Failed{.update = c.state.ranks.receivers[0].id,
                                                                 .destination = 0,
                                                                 .reason = {Code::kUnavailable, "no lane"}});
    c.Settle();
  }
  EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kFailed);
  EXPECT_THAT(c.state.engines.targets[0].reason.message(), HasSubstr("trainer 1: no lane"));
  ASSERT_EQ(c.Phase(), "writing") << "the other engine goes on";
  c.Fire(TimerKind::kStep, c.GroupOf("b"));
  c.processes[c.trainers[1]].writes = true;
  c.PublishAll(2);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
}

TEST(MachineFault, ATrainersOwnFailureAborts) {
  Cluster c;
  c.Start(2, {{"a", 1}, {"b", 1}});
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.trainers[0]].outbox.push_back(protocol::Failed{
      .update = c.state.updates.open->id, .destination = -1, .reason = {Code::kExhausted, "staging"}});
  c.Settle();
  EXPECT_FALSE(c.state.updates.open);
  EXPECT_THAT(c.LastDone(1).reason.message(), HasSubstr("trainer 0: staging"));
}

TEST(MachineFault, AWrongChecksumTakesTheEngineOut) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.engines["a"][0]].outbox.push_back(protocol::Failed{
      .update = c.state.updates.open->id, .destination = -1, .reason = {Code::kCorrupt, "checksum differs"}});
  c.Settle();
  EXPECT_EQ(c.LastDone().reason.code(), Code::kCorrupt);
  EXPECT_EQ(c.StateOf(c.engines["a"][0]), EngineState::kFailed) << "it was told to abort";
}

TEST(MachineFault, AUserWhoGivesUpThePhasesTakesTheEngineOut) {
  Cluster c;
  c.Start(1, {{"a", 2}});
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(1);
  c.Settle();
  auto& rank = c.processes[c.engines["a"][0]];
  rank.open.clear();
  rank.outbox.push_back(protocol::Aborted{.update = c.state.updates.open->id, .lost = true});
  c.Settle();
  EXPECT_FALSE(c.state.updates.open);
  EXPECT_THAT(c.LastDone().reason.message(), HasSubstr("engine a rank 0 gave up the update"));
  EXPECT_EQ(rank.aborts, 0) << "it has fenced already";
  EXPECT_EQ(c.processes[c.engines["a"][1]].aborts, 1);
}

TEST(MachineFault, ARankThatHasNotFencedIsNotGrantedAnew) {
  Cluster c;
  c.Start(1, {{"a", 1}, {"b", 1}});
  c.processes[c.engines["a"][0]].fences = false;
  c.processes[c.trainers[0]].writes = false;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.trainers[0]].outbox.push_back(protocol::Failed{
      .update = c.state.updates.open->id, .destination = -1, .reason = {Code::kInternal, "x"}});
  c.processes[c.trainers[0]].writes = true;
  c.PublishAll(2);
  c.Settle();
  EXPECT_FALSE(c.state.updates.open) << "waits for the fence";
  c.Fire(TimerKind::kFence);
  c.Settle();
  EXPECT_EQ(c.Served(c.engines["b"][0]).number, 2) << "others do not wait for ever";
  EXPECT_THAT(c.LastDone().reason.message(),
              HasSubstr("engine a rank 0 still waits for the end of a write of update 1.0"));
  // Once fenced, it takes part again.
  c.processes[c.engines["a"][0]].outbox.push_back(protocol::Aborted{
      .update = {.term = c.config.term, .epoch = 1, .sequence = 1, .attempt = 0}, .lost = true});
  c.Settle();
  c.PublishAll(3);
  c.Settle();
  EXPECT_TRUE(c.LastDone().met_policy);
}

TEST(MachineFault, StaleMessagesAreDropped) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.PublishAll(1);
  c.Settle();
  const protocol::UpdateId old = c.LastDone().update;
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(2);
  c.Settle();
  const MachineState before = c.state;
  protocol::UpdateId other_term = c.state.updates.open->id;
  other_term.term.id = 1;
  for (const protocol::UpdateId& id : {old, other_term}) {
    c.Do(MessageReceived{c.engines["a"][0], protocol::Granted{.update = id, .grants = {}}});
    c.Do(MessageReceived{c.engines["a"][0], protocol::Ready{.update = id}});
    c.Do(MessageReceived{c.engines["a"][0], protocol::Committed{.update = id}});
    c.Do(MessageReceived{c.engines["a"][0], protocol::Serving{.update = id, .version = kFirst}});
    c.Do(MessageReceived{c.engines["a"][0], protocol::Aborted{.update = id, .lost = true}});
    c.Do(MessageReceived{c.trainers[0],
                         protocol::Failed{.update = id, .destination = 0, .reason = {Code::kInternal, "x"}}});
  }
  EXPECT_TRUE(c.state == before);
}

TEST(MachineFault, AheadOfTurnCostsTheEngineTheUpdate) {
  for (int what = 0; what < 2; ++what) {
    Cluster c;
    c.Start(1, {{"a", 1}});
    c.processes[c.engines["a"][0]].grants = false;
    c.PublishAll(1);
    c.Settle();
    const protocol::UpdateId id = c.state.updates.open->id;
    const protocol::WorkerMessage messages[] = {protocol::Ready{.update = id},
                                                protocol::Committed{.update = id}};
    c.Do(MessageReceived{c.engines["a"][0], messages[what]});
    c.Settle();
    EXPECT_EQ(c.LastDone().reason.code(), Code::kProtocol);
    EXPECT_EQ(c.state.updates.committed.number, -1);
  }
}

TEST(MachineFault, GrantsForTrainersThatDoNotExistAreRefused) {
  for (const uint32_t trainer : {1U, 0U}) {
    Cluster c;
    c.Start(1, {{"a", 1}});
    c.processes[c.engines["a"][0]].grants = false;
    c.PublishAll(1);
    c.Settle();
    protocol::Granted granted{.update = c.state.updates.open->id,
                              .grants = {{.source = 0, .slot = 1, .id = 5}}};
    granted.grants.push_back({.source = trainer, .slot = 2, .id = 6});
    c.Do(MessageReceived{c.engines["a"][0], granted});
    c.Settle();
    EXPECT_EQ(c.LastDone().reason.code(), Code::kProtocol);
  }
}

TEST(MachineFault, ServingWhatItWasNotToldEndsTheSession) {
  Cluster c;
  c.Start(1, {{"a", 2}});
  c.processes[c.engines["a"][1]].switches = false;
  c.PublishAll(1);
  c.Settle();
  c.Do(MessageReceived{c.engines["a"][0],
                       protocol::Serving{.update = c.state.updates.open->id, .version = kFirst}});
  EXPECT_TRUE(c.processes[c.engines["a"][0]].refused);
  EXPECT_EQ(c.processes[c.engines["a"][0]].refusal.code(), Code::kProtocol);
}

TEST(MachineFault, AMessageOfTheOtherSideEndsTheSession) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.Do(MessageReceived{c.engines["a"][0], protocol::Published{.number = 1}});
  EXPECT_EQ(c.processes[c.engines["a"][0]].refusal.code(), Code::kProtocol);
  c.Do(MessageReceived{c.trainers[0], protocol::Ready{}});
  EXPECT_EQ(c.processes[c.trainers[0]].refusal.code(), Code::kProtocol);
}

TEST(MachineFault, AStreamThatComesBackChangesNothing) {
  Cluster c;
  c.Start(1, {{"a", 1}});
  c.processes[c.engines["a"][0]].grants = false;
  c.PublishAll(1);
  c.Settle();
  const MachineState before = c.state;
  c.Do(StreamBroken{c.engines["a"][0]});
  EXPECT_TRUE(c.state.updates.open);
  c.Do(Resumed{c.engines["a"][0]});
  EXPECT_TRUE(c.state == before);
}
}  // namespace
}  // namespace weightcast::control
