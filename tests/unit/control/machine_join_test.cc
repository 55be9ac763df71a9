#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/control/simulator.h"

namespace weightcast::control {
namespace {

using protocol::EngineState;
using ::testing::HasSubstr;

void ExpectRefused(Simulator& sim, SessionId session, const std::string& why) {
  EXPECT_TRUE(sim.processes[session].refused);
  EXPECT_THAT(sim.processes[session].refusal.message(), HasSubstr(why));
  EXPECT_FALSE(sim.Known(session));
}

TEST(MachineJoin, RefusesWhatDoesNotBelong) {
  Simulator sim;
  protocol::Hello hello = RankHello("a", 0, 1);
  hello.job = "other";
  ExpectRefused(sim, sim.Join(hello), "serves job 'default', not 'other'");
  ExpectRefused(sim, sim.Join(RankHello("", 0, 1)), "was given no name of its engine");
  ExpectRefused(sim, sim.Join(RankHello("a", 2, 2)), "engine a rank 2: rank must be an integer in [0, 1]");
  ExpectRefused(sim, sim.Join(RankHello("a", 0, 0)), "the world_size of engine a rank 0 is 0");
  ExpectRefused(sim, sim.Join(RankHello("a", 0, 65537)), "must be an integer in [1, 65536]");
  hello = RankHello("a", 0, 1);
  hello.name.role = protocol::Role::kTrainer;
  ExpectRefused(sim, sim.Join(hello), "trainer 0 was given the engine name 'a'");
  sim.Join(RankHello("a", 0, 2));
  ExpectRefused(sim, sim.Join(RankHello("a", 1, 3)), "world_size 3 for engine a; those already here say 2");
  sim.JoinTrainer(0, 2);
  ExpectRefused(sim, sim.JoinTrainer(1, 4), "world_size 4 for the trainers; those already here say 2");
}

TEST(MachineJoin, ARankGivenTwiceIsRefusedAndTheFirstIsNotDisturbed) {
  Simulator sim;
  const SessionId first = sim.JoinTrainer(0, 2);
  ExpectRefused(sim, sim.JoinTrainer(0, 2), "rank taken: trainer 0 is already here");
  EXPECT_TRUE(sim.Known(first));
}

TEST(MachineJoin, TheNewestWinsOnceTheOldOnesStreamIsBroken) {
  Simulator sim;
  const SessionId other = sim.JoinTrainer(1, 2);
  const SessionId first = sim.JoinTrainer(0, 2);
  sim.Kill(first);
  const SessionId second = sim.JoinTrainer(0, 2);
  EXPECT_TRUE(sim.Known(second));
  EXPECT_FALSE(sim.Known(first));
  sim.Settle();
  ASSERT_EQ(sim.processes[other].lost.size(), 1U);
  EXPECT_THAT(sim.processes[other].lost[0].reason.message(), HasSubstr("a new process has taken its place"));
}

TEST(MachineJoin, AProcessThatBeginsAnewReplacesItself) {
  Simulator sim;
  protocol::Hello hello = RankHello("a", 0, 1);
  hello.incarnation = 5;
  const SessionId first = sim.Join(hello);
  const SessionId second = sim.Join(hello);
  EXPECT_FALSE(sim.Known(first));
  EXPECT_TRUE(sim.Known(second));
}

TEST(MachineJoin, MissingWorkersAreNamedWhenTheTimeIsUp) {
  Simulator sim;
  sim.config.join_timeout = FromSeconds(3);
  const SessionId trainer = sim.JoinTrainer(2, 4);
  const SessionId rank = sim.JoinRank("a", 0, 2);
  const SessionId whole = sim.JoinRank("b", 0, 1);
  sim.Settle();
  sim.Fire(TimerKind::kJoin, kTrainers);
  ExpectRefused(sim, trainer, "missing: trainer 0, 1, 3 of 4 did not join within 3 s");
  sim.Fire(TimerKind::kJoin, sim.GroupOf("a"));
  ExpectRefused(sim, rank, "missing: engine a rank 1 of 2 did not join");
  sim.Fire(TimerKind::kJoin, sim.GroupOf("b"));
  ExpectRefused(sim, whole, "no trainer has joined within 3 s");
  EXPECT_TRUE(sim.timers.empty());
}

TEST(MachineJoin, TrainersWithoutEnginesAndWithoutRegistrationAreToldSo) {
  Simulator sim;
  const SessionId trainer = sim.JoinTrainer(0, 1);
  sim.JoinRank("half", 1, 2);
  sim.Settle();
  sim.Fire(TimerKind::kJoin, kTrainers);
  ExpectRefused(sim, trainer, "fewer than 1 engines have all their ranks within 300 s");
  EXPECT_THAT(sim.processes[trainer].refusal.message(), HasSubstr("missing: engine half rank 0"));
  const SessionId silent = sim.JoinTrainer(0, 1);  // Never reads Welcome, so never registers.
  sim.Fire(TimerKind::kJoin, kTrainers);
  ExpectRefused(sim, silent, "trainer 0 has not registered its tensors");
}

TEST(MachineJoin, WaitingEndsWithThePlan) {
  Simulator sim;
  sim.JoinTrainer(0, 1);
  sim.JoinRank("a", 0, 1);
  EXPECT_TRUE(sim.Armed(TimerKind::kJoin, kTrainers));
  sim.Settle();
  EXPECT_TRUE(sim.timers.empty());
}

TEST(MachineJoin, NewcomersAreNotRefusedBecauseAnUpdateIsOpen) {
  Simulator sim;
  sim.JoinTrainer(0, 1);
  const SessionId slow = sim.JoinRank("slow", 0, 1);
  sim.Settle();
  sim.processes[slow].grants = false;
  sim.PublishAll(1);
  sim.Settle();
  ASSERT_TRUE(sim.state.updates.open);
  const SessionId half = sim.JoinRank("new", 0, 2);
  sim.Settle();
  EXPECT_TRUE(sim.Armed(TimerKind::kJoin, sim.GroupOf("new"))) << "a rank is missing";
  sim.JoinRank("new", 1, 2);
  sim.Settle();
  ASSERT_TRUE(sim.state.updates.open);
  EXPECT_FALSE(sim.Armed(TimerKind::kJoin, sim.GroupOf("new")));
  sim.Fire(TimerKind::kStep, sim.GroupOf("slow"));
  EXPECT_TRUE(sim.Armed(TimerKind::kJoin, sim.GroupOf("new")));
  sim.Settle();
  EXPECT_TRUE(sim.Known(half));
  EXPECT_EQ(sim.state.plan.destinations.size(), 3U);
}

TEST(MachineJoin, TheFirstPlanWaitsForTheWantedNumberOfEngines) {
  Simulator sim;
  sim.config.min_engines = 2;
  sim.JoinTrainer(0, 1);
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.Settle();
  EXPECT_EQ(sim.state.plan.phase, PlanPhase::kNone);
  sim.JoinRank("b", 0, 1);
  sim.Settle();
  EXPECT_EQ(sim.state.plan.phase, PlanPhase::kPrepared);
  EXPECT_EQ(sim.state.plan.destinations.size(), 2U);
  sim.KillAndNotice(a);  // Later plans do not wait.
  sim.Settle();
  EXPECT_EQ(sim.state.plan.phase, PlanPhase::kPrepared);
  EXPECT_EQ(sim.state.plan.destinations.size(), 1U);
}

TEST(MachineJoin, LeavingIsToldToTheOthers) {
  Simulator sim;
  const SessionId t = sim.JoinTrainer(0, 1);
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.Settle();
  sim.processes[t].outbox.push_back(protocol::Leave{});
  sim.Settle();
  EXPECT_FALSE(sim.Known(t));
  ASSERT_EQ(sim.processes[a].lost.size(), 1U);
  EXPECT_EQ(sim.processes[a].lost[0].reason.message(), "trainer 0 has left; start it again to go on");
  EXPECT_FALSE(sim.Armed(TimerKind::kJoin, sim.GroupOf("a"))) << "an engine outlives its trainers";
}

TEST(MachinePlan, AnotherRegistrationRaisesTheEpoch) {
  Simulator sim;
  sim.JoinTrainer(0, 1);
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.Settle();
  sim.processes[a].outbox.push_back(protocol::Register{});
  sim.processes[a].outbox.push_back(protocol::LandingMap{});
  sim.Settle();
  EXPECT_EQ(sim.state.plan.epoch, 2U);
  EXPECT_EQ(sim.state.plan.phase, PlanPhase::kPrepared);
}

TEST(MachinePlan, ARegistrationSaysWhatTheRankServesNow) {
  Simulator sim;
  const SessionId t = sim.JoinTrainer(0, 1);
  // Its Hello was packed before its tensors were lost.
  const SessionId a = sim.Join(ServesOf("a", {.run = 1, .number = 7, .origin = 5}));
  EXPECT_EQ(sim.state.roster.workers().back().state, EngineState::kServing);
  sim.processes[a].version = {};
  sim.processes[a].state = EngineState::kFailed;
  sim.Settle();
  EXPECT_EQ(sim.state.roster.workers().back().state, EngineState::kFailed);
  sim.Publish(t, 1, /*hold=*/true);
  sim.Settle();
  EXPECT_EQ(sim.Served(a).number, 1);
  // Other memory under the same name: the version goes, and the held one comes again.
  sim.processes[a].version = {};
  sim.processes[a].state = EngineState::kJoining;
  sim.processes[a].SayRegister();
  sim.Settle();
  EXPECT_EQ(sim.processes[t].done.size(), 2U);
  EXPECT_EQ(sim.Served(a).number, 1);
  // A trainer that registers again does not hold it any more.
  sim.processes[t].SayRegister();
  sim.Settle();
  sim.JoinRank("b", 0, 1);
  sim.Settle();
  EXPECT_EQ(sim.processes[t].done.size(), 2U);
}

TEST(MachinePlan, APlanThatFailsIsToldToThoseConcerned) {
  Simulator sim;
  const SessionId t = sim.JoinTrainer(0, 1);
  const SessionId good = sim.JoinRank("good", 0, 1);
  const SessionId bad = sim.JoinRank("bad", 0, 1);
  sim.plan_error = {Code::kInvalidArgument, "shapes do not match: [2] and [3]"};
  sim.plan_concerned = {bad};
  sim.Settle();
  ExpectRefused(sim, bad, "shapes do not match");
  EXPECT_EQ(sim.state.plan.phase, PlanPhase::kPrepared) << "the rest goes on";
  EXPECT_EQ(sim.state.plan.destinations, std::vector<SessionId>{good});
  EXPECT_TRUE(sim.Known(t));
}

TEST(MachinePlan, APlanThatIsTooLargeIsToldToTheNewestEngineAlone) {
  Simulator sim;
  const SessionId t = sim.JoinTrainer(0, 1);
  const SessionId a = sim.JoinRank("a", 0, 1);
  const SessionId z = sim.JoinRank("z", 0, 2);  // Later than b, but by its other rank.
  const SessionId b = sim.JoinRank("b", 0, 1);
  const SessionId z1 = sim.JoinRank("z", 1, 2);
  const Status too_large(Code::kExhausted, "a plan from 1 ranks to 4 has 123 routes");
  sim.plan_error = too_large;
  sim.Settle();
  ExpectRefused(sim, z, "has 123 routes");
  ExpectRefused(sim, z1, "has 123 routes");
  EXPECT_EQ(sim.state.plan.phase, PlanPhase::kPrepared) << "the rest goes on";
  EXPECT_EQ(sim.state.plan.destinations, (std::vector<SessionId>{a, b}));

  const SessionId c = sim.JoinRank("c", 0, 1);
  sim.plan_error = too_large;
  sim.Settle();
  ExpectRefused(sim, c, "has 123 routes");
  EXPECT_EQ(sim.state.plan.destinations, (std::vector<SessionId>{a, b}));
  sim.Publish(t, 1);
  sim.Settle();
  EXPECT_EQ(sim.Served(a).number, 1);
  EXPECT_EQ(sim.Served(b).number, 1);
}

TEST(MachinePlan, APlanThatHadRoomBeforeIsMadeAgainLater) {
  Simulator sim;
  const SessionId t = sim.JoinTrainer(0, 1);
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.Settle();
  sim.processes[t].SayRegister();
  sim.plan_error = {Code::kExhausted, "out of memory"};
  sim.Settle();
  EXPECT_TRUE(sim.Known(t));
  EXPECT_TRUE(sim.Known(a));
  EXPECT_EQ(sim.state.plan.phase, PlanPhase::kPrepared);
  EXPECT_THAT(sim.state.last_error.message(), HasSubstr("out of memory"));
}

TEST(MachinePlan, TrainersThatAreNewAndTooManyAreRefused) {
  Simulator sim;
  const SessionId first = sim.JoinTrainer(0, 1);
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.Settle();
  sim.Kill(first);
  sim.LeaseOut(first);
  const SessionId second = sim.JoinTrainer(0, 1);
  sim.plan_error = {Code::kExhausted, "has 123 routes"};
  sim.Settle();
  ExpectRefused(sim, second, "has 123 routes");
  EXPECT_TRUE(sim.Known(a));
}

TEST(MachinePlan, AMemberThatDiesWhilePlanningVoidsThePlan) {
  Simulator sim;
  sim.JoinTrainer(0, 1);
  sim.JoinRank("a", 0, 1);
  const SessionId b = sim.JoinRank("b", 0, 1);
  while (!sim.planning) {
    std::mt19937 random(1);
    if (!sim.StepRandom(random)) sim.Fire(TimerKind::kPlan);
  }
  sim.KillAndNotice(b);
  sim.Settle();
  EXPECT_EQ(sim.state.plan.epoch, 2U);
  EXPECT_EQ(sim.state.plan.destinations.size(), 1U);
  EXPECT_EQ(sim.processes.begin()->second.epoch, 2U) << "the void plan was never handed out";
}

/// A trainer and the engines a and b; the trainer cannot prepare the plan because of b.
struct UnreachableEngine : Simulator {
  UnreachableEngine() {
    processes[t].stuck = true;  // Its words are put into its mouth.
    Do(MessageReceived{t, protocol::Register{}});
  }
  void Fail(Code code) {
    Settle();
    ASSERT_EQ(state.plan.phase, PlanPhase::kPreparing);
    const protocol::Failed failed{.update = {.term = config.term, .epoch = state.plan.epoch},
                                  .destination = 1,
                                  .reason = {code, "no answer from 10.0.0.2:4711"}};
    protocol::Failed stale = failed;
    --stale.update.epoch;
    Do(MessageReceived{t, stale});
    EXPECT_EQ(state.plan.phase, PlanPhase::kPreparing);
    Do(MessageReceived{t, failed});
    Do(MessageReceived{t, failed});  // Counts once.
  }
  [[nodiscard]] size_t planned() const { return state.plan.destinations.size(); }

  const SessionId t = JoinTrainer(0, 1);
  const SessionId a = JoinRank("a", 0, 1);
  const SessionId b = JoinRank("b", 0, 1);
};

TEST(MachinePlan, AnEngineThatRefusesItsSourcesIsRefusedByName) {
  UnreachableEngine sim;
  for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
    sim.Fail(Code::kPermission);
    EXPECT_EQ(sim.Known(sim.b), epoch < 3);
  }
  ExpectRefused(sim, sim.b, "trainer 0 cannot reach engine b rank 0: no answer from 10.0.0.2:4711");
  sim.Settle();
  EXPECT_TRUE(sim.Known(sim.a));
  EXPECT_EQ(sim.state.plan.epoch, 4U);
}

TEST(MachinePlan, AnEngineThatCannotBeReachedIsLeftOutAndTriedAgainWithoutEnd) {
  for (const Code code : {Code::kTimedOut, Code::kUnavailable, Code::kPeerDead, Code::kExhausted}) {
    UnreachableEngine sim;
    const GroupId b = sim.GroupOf("b");
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(sim.Armed(TimerKind::kRetry, b));
      sim.Fail(code);
      EXPECT_EQ(sim.planned(), 2U);
    }
    Duration last{};
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(sim.Armed(TimerKind::kRetry, b));
      EXPECT_FALSE(sim.Armed(TimerKind::kJoin, b)) << "join_timeout is for those who wait for others";
      const Duration after = sim.timers.at({TimerKind::kRetry, b});
      EXPECT_GE(after, last);
      EXPECT_LE(after, 64 * sim.config.lease);
      last = after;
      sim.Settle();
      EXPECT_EQ(sim.planned(), 1U) << "the others go on";
      sim.Fire(TimerKind::kRetry, b);
      sim.Fail(code);
      EXPECT_EQ(sim.planned(), 2U);
      EXPECT_TRUE(sim.Known(sim.b));
    }
    EXPECT_NE(sim.state.last_error.message().find("cannot reach engine b rank 0"), std::string::npos);
    sim.Fire(TimerKind::kRetry, b);
    sim.Settle();
    sim.Do(MessageReceived{sim.t, protocol::Prepared{.epoch = sim.state.plan.epoch}});
    EXPECT_EQ(sim.state.plan.phase, PlanPhase::kPrepared);
    EXPECT_EQ(sim.state.plan.groups.Of(b).failed_prepares, 0);
  }
}

TEST(MachinePlan, AnEngineThatIsLeftOutBeginsAnewWhenItIsStartedAgain) {
  UnreachableEngine sim;
  for (int i = 0; i < 3; ++i) sim.Fail(Code::kTimedOut);
  ASSERT_TRUE(sim.Armed(TimerKind::kRetry, sim.GroupOf("b")));
  sim.Do(Gone{sim.b, {Code::kPeerDead, "its process has ended"}});
  EXPECT_FALSE(sim.Armed(TimerKind::kRetry, sim.GroupOf("b")));
  sim.JoinRank("b", 0, 1);
  sim.Settle();
  EXPECT_EQ(sim.planned(), 2U);
}

TEST(MachinePlan, AWorkerThatNeverPreparesIsNamed) {
  Simulator sim;
  sim.config.timeout = FromSeconds(7);
  sim.JoinTrainer(0, 1);
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.processes[a].stuck = true;
  sim.Do(MessageReceived{a, protocol::Register{}});
  sim.Do(MessageReceived{a, protocol::LandingMap{}});
  for (int i = 0; i < 3; ++i) {
    sim.Settle();
    sim.Fire(TimerKind::kPrepare);
  }
  ExpectRefused(sim, a, "engine a rank 0 has not made its connections within 7 s");
}

TEST(MachinePublish, EarlyPublicationsWaitForThePlan) {
  Simulator sim;
  const SessionId t0 = sim.JoinTrainer(0, 2);
  sim.Publish(t0, 1);
  sim.Settle();
  const SessionId t1 = sim.JoinTrainer(1, 2);
  sim.Publish(t1, 1);
  sim.Settle();
  EXPECT_FALSE(sim.Armed(TimerKind::kCatchUp));
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.Settle();
  EXPECT_EQ(sim.Served(a).number, 1);
}

TEST(MachinePublish, WhoDoesNotCatchUpIsNamed) {
  Simulator sim;
  sim.config.timeout = FromSeconds(2);
  const SessionId t0 = sim.JoinTrainer(0, 2);
  const SessionId t1 = sim.JoinTrainer(1, 2);
  sim.JoinRank("a", 0, 1);
  sim.Settle();
  sim.Publish(t0, 5);
  sim.Settle();
  sim.Fire(TimerKind::kCatchUp);
  sim.Settle();
  ASSERT_EQ(sim.processes[t0].done.size(), 1U);
  EXPECT_EQ(
      sim.processes[t0].done[0].reason.message(),
      "trainer 1 has not published version 5 within 2 s (setting timeout); see the log of that trainer");
  sim.Publish(t1, 5);  // Too late: the other's bytes may have changed.
  sim.Settle();
  ASSERT_EQ(sim.processes[t1].done.size(), 1U);
  EXPECT_FALSE(sim.processes[t1].done[0].met_policy);
  sim.PublishAll(6);
  sim.Settle();
  EXPECT_TRUE(sim.processes[t0].done[1].met_policy);
}

TEST(MachinePublish, WhoPublishesWhatAnotherHasGonePastIsToldAtOnce) {
  for (const bool low_first : {true, false}) {
    Simulator sim;
    const SessionId t0 = sim.JoinTrainer(0, 2);
    const SessionId t1 = sim.JoinTrainer(1, 2);
    const SessionId a = sim.JoinRank("a", 0, 1);
    sim.Settle();
    if (low_first) sim.Publish(t1, 7);
    sim.Publish(t0, 8);
    if (!low_first) sim.Publish(t1, 7);
    sim.Settle();
    ASSERT_EQ(sim.processes[t1].done.size(), 1U);
    EXPECT_EQ(
        sim.processes[t1].done[0].reason.message(),
        "version 7 of trainer 1 cannot be completed: trainer 0 has gone on to version 8; publish the state "
        "that they agree on under a higher number");
    EXPECT_TRUE(sim.processes[t0].done.empty()) << "the other may still publish 8";
    sim.Publish(t1, 8);
    sim.Settle();
    EXPECT_EQ(sim.Served(a).number, 8);
  }
}

TEST(MachinePublish, ATrainerThatServesAnOlderVersionIsNamedWithIt) {
  Simulator sim;
  const SessionId t0 = sim.JoinTrainer(0, 2);
  sim.JoinTrainer(1, 2);
  sim.JoinRank("a", 0, 1);
  sim.Settle();
  sim.PublishAll(7);
  sim.Settle();
  sim.Publish(t0, 8);
  sim.Settle();
  sim.Fire(TimerKind::kCatchUp);
  sim.Settle();
  EXPECT_THAT(sim.processes[t0].done.back().reason.message(), HasSubstr("trainer 1 is at version 7, not 8"));
}

TEST(MachinePublish, ANewerVersionSupersedesOneThatHasNotOpened) {
  Simulator sim;
  const SessionId t0 = sim.JoinTrainer(0, 2);
  const SessionId t1 = sim.JoinTrainer(1, 2);
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.Settle();
  sim.processes[t0].writes = false;
  sim.PublishAll(1);
  sim.Settle();
  sim.PublishAll(2);
  sim.Settle();
  EXPECT_EQ(sim.processes[t0].superseded, 0) << "1 is being sent";
  sim.Publish(t0, 3);
  sim.Settle();
  EXPECT_EQ(sim.processes[t0].superseded, 1);
  EXPECT_EQ(sim.processes[t1].superseded, 1) << "trainer 0 has 2 no more";
  sim.Publish(t1, 3);
  sim.processes[t0].writes = true;
  sim.Settle();
  sim.Fire(TimerKind::kStep, sim.GroupOf("a"));
  sim.Settle();
  EXPECT_EQ(sim.Served(a).number, 3);
}

TEST(MachinePublish, WhoPublishesASupersededVersionLateIsTold) {
  Simulator sim;
  const SessionId t0 = sim.JoinTrainer(0, 2);
  const SessionId t1 = sim.JoinTrainer(1, 2);
  sim.Settle();
  sim.Publish(t0, 1);
  sim.Publish(t0, 2);
  sim.Settle();
  sim.Publish(t1, 1);
  sim.Settle();
  EXPECT_EQ(sim.processes[t1].superseded, 1);
}

TEST(MachineView, ShowsWhoIsThereAndWhatGoesOn) {
  Simulator sim;
  EXPECT_EQ(ViewOf(sim.state).phase, "waiting for workers");
  sim.JoinTrainer(0, 1);
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.Settle();
  EXPECT_EQ(ViewOf(sim.state).phase, "planned");
  sim.processes[a].grants = false;
  sim.PublishAll(1);
  sim.Settle();
  protocol::ModelView view = ViewOf(sim.state);
  EXPECT_EQ(view.phase, "granting");
  EXPECT_EQ(view.update.sequence, 1U);
  ASSERT_EQ(view.workers.size(), 2U);
  EXPECT_TRUE(view.workers[0].prepared);
  EXPECT_EQ(view.workers[0].version.number, 1);
  ASSERT_EQ(view.engines.size(), 1U);
  EXPECT_EQ(view.engines[0].state, EngineState::kJoining);
  sim.KillAndNotice(a);
  sim.Settle();
  view = ViewOf(sim.state);
  EXPECT_EQ(view.engines[0].state, EngineState::kFailed);
  EXPECT_THAT(view.engines[0].last_error, HasSubstr("engine a rank 0 is lost"));
}

TEST(MachineGroups, EmptyEnginesAreForgottenInTheEnd) {
  Simulator sim;
  for (int i = 0; i < 100; ++i) sim.KillAndNotice(sim.JoinRank(StrCat("engine-", i), 0, 1));
  EXPECT_LE(sim.state.roster.groups().size(), 34U);
}

}  // namespace
}  // namespace weightcast::control
