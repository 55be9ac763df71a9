#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/limits.h"
#include "unit/control/simulator.h"

// Runs: which publications belong together, and what is newer.
namespace weightcast::control {
namespace {

using protocol::EngineState;
using ::testing::HasSubstr;

protocol::Hello FreshTrainer(uint32_t rank = 0, uint32_t world_size = 1) {
  protocol::Hello hello;
  hello.name.rank = rank;
  hello.world_size = world_size;
  return hello;
}

TEST(MachineRuns, RunsAndRestarts) {
  Simulator sim;
  SessionId t0 = sim.JoinTrainer(0, 2);
  SessionId t1 = sim.JoinTrainer(1, 2);
  EXPECT_EQ(sim.state.runs.run.number, 1U);
  sim.KillAndNotice(t0);
  sim.KillAndNotice(t1);
  t0 = sim.JoinTrainer(0, 2);
  t1 = sim.JoinTrainer(1, 2);
  EXPECT_EQ(sim.state.runs.run.number, 2U) << "one new run for both";
  protocol::Hello same = sim.processes[t1].hello;
  sim.KillAndNotice(t1);
  sim.Join(same);
  EXPECT_EQ(sim.state.runs.run.number, 2U) << "a process that was only declared dead";

  Simulator after_restart;
  protocol::Hello rank = RankHello("a", 0, 1);
  rank.state = EngineState::kServing;
  rank.version = {.run = 3, .number = 8};
  after_restart.Join(rank);
  after_restart.JoinTrainer(0, 1);
  EXPECT_EQ(after_restart.state.runs.run.number, 4U) << "new trainers supersede what the engine serves";

  Simulator survivors;
  protocol::Hello trainer;
  trainer.world_size = 1;
  trainer.run = {.number = 3, .origin = 5};
  survivors.Join(trainer);
  EXPECT_EQ(survivors.state.runs.run.number, 3U) << "trainers that outlived the controller keep their run";
}

TEST(MachineRuns, ARunOfThisControllerIsNotMistakenForOneOfAnother) {
  Simulator sim;  // Controller and trainers were restarted; the trainers are back first.
  const SessionId t = sim.Join(FreshTrainer());
  sim.Publish(t, 81);
  const SessionId a = sim.Join(ServesOf("a", {.run = 1, .number = 100, .origin = 5}));
  EXPECT_EQ(sim.state.runs.run.number, 2U);
  sim.Settle();
  EXPECT_EQ(sim.processes[t].run.number, 2U);
  sim.Publish(t, 100);
  sim.Settle();
  EXPECT_TRUE(sim.processes[t].done.back().met_policy);
  EXPECT_EQ(sim.processes[t].done.back().receivers.size(), 1U) << "bytes were sent";
  EXPECT_EQ(sim.Served(a), (Version{.run = 2, .number = 100, .origin = sim.config.term.id}));

  // Those who come back to this controller, or later, change nothing.
  sim.Join(ServesOf("b", {.run = 2, .number = 100, .origin = sim.config.term.id}));
  sim.Join(ServesOf("c", {.run = 1, .number = 120, .origin = 5}));
  EXPECT_EQ(sim.state.runs.run.number, 2U);
  sim.Join(ServesOf("d", {.run = 2, .number = 9, .origin = 6}));
  EXPECT_EQ(sim.state.runs.run.number, 3U);

  // Members of the run are still known: restarted trainers begin another.
  sim.Settle();
  sim.KillAndNotice(t);
  sim.Join(FreshTrainer());
  EXPECT_EQ(sim.state.runs.run.number, 4U);
}

TEST(MachineRuns, ARunAtTheEndOfTheNumbersIsRefused) {
  Simulator sim;
  protocol::Hello trainer = FreshTrainer(1, 2);
  trainer.run = {.number = UINT64_MAX, .origin = 5};
  const SessionId first = sim.Join(trainer);
  const SessionId served = sim.Join(ServesOf("a", {.run = UINT64_MAX, .number = 100, .origin = 5}));
  protocol::Hello fresh = RankHello("b", 0, 1);
  fresh.newest = {.run = protocol::kMaxRun + 1, .number = 1, .origin = 5};
  const SessionId newest = sim.Join(fresh);
  for (const SessionId session : {first, served, newest}) EXPECT_TRUE(sim.processes[session].refused);
  EXPECT_EQ(sim.state.runs.run.number, 0U);
  EXPECT_EQ(sim.state.runs.seen, 0U);

  const SessionId t = sim.Join(FreshTrainer());
  const SessionId rank = sim.JoinRank("a", 0, 1);
  sim.Publish(t, 1);
  sim.Settle();
  EXPECT_EQ(sim.Served(rank), (Version{.run = 1, .number = 1, .origin = sim.config.term.id}));
  sim.processes[rank].outbox.push_back(protocol::Register{
      .shards = {}, .rules = {}, .version = {.run = UINT64_MAX, .number = 7, .origin = 5}});
  sim.Settle();
  EXPECT_TRUE(sim.processes[rank].refused);
  EXPECT_EQ(sim.state.runs.run.number, 1U);
}

TEST(MachineRuns, TheHighestRunOfAnotherControllerIsPassed) {
  Simulator sim;
  sim.Join(ServesOf("a", {.run = protocol::kMaxRun, .number = 100, .origin = 5}));
  const SessionId t = sim.Join(FreshTrainer());
  EXPECT_EQ(sim.state.runs.run.number, protocol::kMaxRun + 1);
  sim.KillAndNotice(t);
  protocol::Hello back = FreshTrainer();
  back.run = sim.state.runs.run;
  back.incarnation = sim.processes[t].hello.incarnation;
  EXPECT_FALSE(sim.processes[sim.Join(back)].refused) << "counted here";
}

TEST(MachineRuns, RunsInEveryOrderOfAttaching) {
  const protocol::Hello engine = ServesOf("a", {.run = 1, .number = 100, .origin = 5});
  protocol::Hello survivor = FreshTrainer(1, 2);
  survivor.run = {.number = 1, .origin = 5};
  const protocol::Hello fresh = FreshTrainer(0, 2);
  const std::vector<std::pair<std::vector<protocol::Hello>, uint64_t>> cases = {
      {{engine, survivor}, 1},        {{survivor, engine}, 1},        {{engine, fresh}, 2},
      {{fresh, engine}, 2},           {{engine, survivor, fresh}, 2}, {{engine, fresh, survivor}, 3},
      {{fresh, engine, survivor}, 3}, {{fresh, survivor, engine}, 2}, {{survivor, fresh, engine}, 2},
      {{survivor, engine, fresh}, 2}, {{survivor, fresh}, 2},         {{fresh, survivor}, 2}};
  for (size_t i = 0; i < cases.size(); ++i) {
    Simulator sim;
    for (const protocol::Hello& hello : cases[i].first) sim.Join(hello);
    EXPECT_EQ(sim.state.runs.run.number, cases[i].second) << "case " << i;
  }
}

TEST(MachineRuns, AnEngineThatServesTheVersionAlreadyIsNotDisturbed) {
  Simulator sim;
  protocol::Hello trainer;
  trainer.world_size = 1;
  trainer.run = {.number = 3, .origin = 5};
  protocol::Hello rank = RankHello("a", 0, 1);
  rank.state = EngineState::kServing;
  rank.version = {.run = 3, .number = 9, .origin = 5};
  const SessionId t = sim.Join(trainer);
  sim.Join(rank);
  sim.Settle();
  sim.Publish(t, 9);
  sim.Settle();
  ASSERT_EQ(sim.processes[t].done.size(), 1U);
  EXPECT_TRUE(sim.processes[t].done[0].met_policy);
  EXPECT_TRUE(sim.processes[t].done[0].receivers.empty());
}

TEST(MachineRuns, NumbersRise) {
  Simulator sim;
  const SessionId t = sim.JoinTrainer(0, 1);
  sim.Settle();
  sim.Publish(t, 5);
  sim.Settle();
  sim.Do(MessageReceived{t, protocol::Published{.number = 5, .run = sim.state.runs.run}});
  sim.Settle();
  ASSERT_EQ(sim.processes[t].done.size(), 1U);
  EXPECT_THAT(sim.processes[t].done[0].reason.message(), HasSubstr("version 5 is not newer than 5"));
}

TEST(MachineRuns, WhoComesFirstInTheNextRunWaitsForTheOthers) {
  Simulator sim;
  sim.Join(RankHello("a", 0, 1));
  SessionId t0 = sim.JoinTrainer(0, 2);
  SessionId t1 = sim.JoinTrainer(1, 2);
  sim.Settle();
  sim.KillAndNotice(t0);
  sim.KillAndNotice(t1);
  t0 = sim.JoinTrainer(0, 2);
  sim.Settle();
  sim.Publish(t0, 1);
  sim.Settle();
  EXPECT_TRUE(sim.processes[t0].done.empty()) << sim.processes[t0].done[0].reason.ToString();
  t1 = sim.JoinTrainer(1, 2);
  sim.Settle();
  sim.Publish(t1, 1);
  sim.Settle();
  ASSERT_EQ(sim.processes[t0].done.size(), 1U);
  EXPECT_TRUE(sim.processes[t0].done[0].met_policy) << sim.processes[t0].done[0].reason.ToString();
}

TEST(MachineRuns, WhoPublishesIsPartOfTheRun) {
  Simulator sim;
  const SessionId t0 = sim.JoinTrainer(0, 2);
  SessionId t1 = sim.JoinTrainer(1, 2);
  sim.JoinRank("a", 0, 1);
  sim.Settle();
  sim.KillAndNotice(t0);
  sim.JoinTrainer(0, 2);
  sim.Settle();
  EXPECT_EQ(sim.state.runs.run.number, 2U);
  sim.Publish(t1, 1);
  sim.Settle();
  sim.KillAndNotice(t1);
  t1 = sim.JoinTrainer(1, 2);
  EXPECT_EQ(sim.state.runs.run.number, 3U) << "it may publish 1 of other bytes";
}

TEST(MachineRuns, BytesOfARunThatAnotherControllerCountedAreRefused) {
  Simulator sim;
  const SessionId t0 = sim.JoinTrainer(0, 2);
  const SessionId t1 = sim.JoinTrainer(1, 2);
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.Settle();
  // It said Hello before it published, so that nothing showed that it had outlived a controller.
  sim.Do(MessageReceived{t0, protocol::Published{.number = 1, .run = {.number = 1, .origin = 5}}});
  sim.Publish(t1, 1);
  sim.Settle();
  ASSERT_FALSE(sim.processes[t0].done.empty());
  EXPECT_EQ(
      sim.processes[t0].done.back().reason.message(),
      "version 1 of trainer 0 is from before a trainer or the controller restarted (run 1 of an earlier "
      "controller, now 1): publish the state that all trainers agree on under a higher number");
  EXPECT_EQ(sim.Served(a).number, -1) << "half of it would be of another run";
}

TEST(MachineRuns, TrainersOfDifferentPastsBeginARun) {
  const protocol::Run first{.number = 3, .origin = 5};
  const protocol::Run second{.number = 3, .origin = 6};
  struct Case {
    protocol::Run one;
    protocol::Run other;
    bool together;
    uint64_t run;
  };
  for (const Case& c : {Case{{}, {}, true, 1}, Case{first, first, true, 3}, Case{first, second, false, 4},
                        Case{{}, first, false, 4}, Case{first, {}, false, 4}}) {
    Simulator sim;
    protocol::Hello hello = FreshTrainer(0, 2);
    hello.run = c.one;
    sim.Join(hello);
    const protocol::Run alone = sim.state.runs.run;
    hello.name.rank = 1;
    hello.run = c.other;
    const SessionId session = sim.Join(hello);
    const protocol::Run both = sim.state.runs.run;
    EXPECT_EQ(both.number, c.run) << c.one.number << " and " << c.other.number;
    EXPECT_EQ(both == alone, c.together);
    // Whoever comes back to this controller comes from its run.
    hello.run = both;
    hello.incarnation = sim.processes[session].hello.incarnation;
    sim.KillAndNotice(session);
    sim.Join(hello);
    EXPECT_EQ(sim.state.runs.run, both);
  }
}

TEST(MachineRuns, NothingOlderThanARankHasServed) {
  Simulator sim;
  protocol::Hello a = ServesOf("a", {.run = 3, .number = 1, .origin = 5});
  protocol::Hello b = RankHello("b", 0, 1);  // It has lost its bytes.
  b.newest = {.run = 3, .number = 2, .origin = 5};
  sim.Join(a);
  const SessionId ahead = sim.Join(b);
  const SessionId behind = sim.JoinRank("c", 0, 1);
  sim.Settle();
  EXPECT_EQ(sim.Served(behind), (Version{.run = 3, .number = 1, .origin = 5}));
  EXPECT_EQ(sim.Served(ahead).number, -1);
  sim.JoinTrainer(0, 1);
  EXPECT_EQ(sim.state.runs.run.number, 4U);
}

TEST(MachineRuns, WhoeverIsToldOfARunIsReplacedOnlyByANewOne) {
  Simulator sim;
  SessionId t0 = sim.JoinTrainer(0, 2);
  const SessionId t1 = sim.JoinTrainer(1, 2);
  sim.JoinRank("a", 0, 1);
  sim.Settle();
  sim.KillAndNotice(t0);
  t0 = sim.JoinTrainer(0, 2);
  sim.Settle();
  ASSERT_EQ(sim.state.runs.run.number, 2U);
  sim.KillAndNotice(t1);  // It knew of run 2; what it published in it never came.
  sim.JoinTrainer(1, 2);
  EXPECT_EQ(sim.state.runs.run.number, 3U);
}

TEST(MachineRuns, BytesOfAnOlderRunAreRefused) {
  Simulator sim;
  const SessionId t0 = sim.JoinTrainer(0, 2);
  const SessionId t1 = sim.JoinTrainer(1, 2);
  const SessionId a = sim.JoinRank("a", 0, 1);
  sim.Settle();
  const protocol::Run first = sim.state.runs.run;
  sim.KillAndNotice(t1);
  const SessionId again = sim.JoinTrainer(1, 2);
  ASSERT_EQ(sim.state.runs.run.number, 2U);
  // The one that stayed does not know of it as it publishes.
  sim.Do(MessageReceived{t0, protocol::Published{.number = 1, .run = first}});
  sim.Settle();
  ASSERT_FALSE(sim.processes[t0].done.empty());
  EXPECT_EQ(sim.processes[t0].done.back().reason.message(),
            "version 1 of trainer 0 is from before a trainer or the controller restarted (run 1, now 2): "
            "publish the state that all trainers agree on under a higher number");
  sim.Publish(again, 1);
  sim.Settle();
  EXPECT_EQ(sim.Served(a).number, -1) << "half of it would be of run 1";
  sim.Publish(t0, 2);
  sim.Publish(again, 2);
  sim.Settle();
  EXPECT_EQ(sim.Served(a), (Version{.run = 2, .number = 2, .origin = sim.config.term.id}));
}

}  // namespace
}  // namespace weightcast::control
