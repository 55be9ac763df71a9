#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/strings.h"
#include "unit/control/cluster.h"

// Engines with an EngineControl. That nothing happens before its turn is checked by the simulator at every
// action; here is what becomes of them.
namespace weightcast::control {
namespace {

using protocol::Command;
using protocol::EngineState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Controlled : Cluster {
  SessionId control = 0;

  void StartControlled(protocol::Landing landing = protocol::Landing::kInPlace) {
    config.together = false;
    control = JoinControl("a");
    Start(1, {{"a", 2}, {"b", 1}}, landing);
    processes[control].orders.clear();
  }
  std::vector<Command> Taken() {
    std::vector<Command> given;
    for (const protocol::EngineCommand& order : std::exchange(processes[control].orders, {}))
      given.push_back(order.command);
    return given;
  }
  SessionId a(size_t rank = 0) { return engines["a"][rank]; }
};

TEST(MachineCommand, InPlaceItIsPausedFirst) {
  Controlled c;
  c.StartControlled();
  c.PublishAll(1);
  c.Settle();
  EXPECT_THAT(c.Taken(), ElementsAre(Command::kPause, Command::kActivate, Command::kResume));
  EXPECT_EQ(c.Served(c.a()), kFirst);
  EXPECT_TRUE(c.processes[c.control].admitted);
  EXPECT_EQ(ViewOf(c.state).engines[0].control, "resumed");
}

TEST(MachineCommand, IntoSpareBuffersItRunsUntilTheSwitch) {
  Controlled c;
  c.StartControlled(protocol::Landing::kShadow);
  c.processes[c.control].commands = false;
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.StateOf(c.a()), EngineState::kReady) << "every byte is there before anybody pauses";
  c.CommandLate(c.control);
  c.Settle();
  EXPECT_EQ(c.Served(c.a()), kFirst);
}

/// Engine a has every byte and waits for its control; engine b serves the version.
struct HalfCommitted : Controlled {
  void Begin() {
    StartControlled(protocol::Landing::kShadow);
    processes[control].commands = false;
    PublishAll(1);
    Settle();
    ASSERT_EQ(StateOf(a()), EngineState::kReady) << "Commit has not been said";
    ASSERT_EQ(Served(engines["b"][0]), kFirst);
  }
};

TEST(MachineCommand, WhoHasEveryByteGoesOnWithoutALostSource) {
  HalfCommitted c;
  ASSERT_NO_FATAL_FAILURE(c.Begin());
  const protocol::UpdateId update = c.state.updates.open->id;
  c.KillAndNotice(c.trainers[0]);
  c.Settle();
  ASSERT_TRUE(c.state.updates.open);
  EXPECT_EQ(c.state.updates.open->id, update);
  c.CommandLate(c.control);
  c.Settle();
  EXPECT_EQ(c.Served(c.a()), kFirst);
}

TEST(MachineCommand, WhoHasEveryByteOfAFailedSourceDoesNotSwitch) {
  HalfCommitted c;
  ASSERT_NO_FATAL_FAILURE(c.Begin());
  c.processes[c.trainers[0]].outbox.push_back(
      protocol::Failed{.update = c.state.updates.open->id, .reason = {Code::kCorrupt, "the file changed"}});
  c.Settle();
  const auto& engines = c.LastDone().engines;
  ASSERT_EQ(engines.size(), 2U);
  for (const protocol::EngineOutcome& outcome : engines) {
    EXPECT_EQ(outcome.committed, outcome.engine == "b") << "engine b was told before";
    if (outcome.engine == "a") {
      EXPECT_THAT(outcome.reason.message(), HasSubstr("the file changed"));
    }
  }
}

TEST(MachineCommand, WithoutAnAnswerItIsOutAndGoesOnWithWhatItHas) {
  Controlled c;
  c.StartControlled();
  c.PublishAll(1);
  c.Settle();
  c.processes[c.control].commands = false;
  c.PublishAll(2);
  c.Settle();
  c.Taken();
  EXPECT_EQ(c.Served(c.engines["b"][0]).number, 2) << "others do not wait, by policy each";
  c.Fire(TimerKind::kStep, c.GroupOf("a"));
  c.Settle();
  EXPECT_EQ(c.Served(c.a()), kFirst) << "nothing was written";
  EXPECT_THAT(c.LastDone().engines[0].reason.message(), HasSubstr("the control of engine a"));
  c.PublishAll(3);
  c.Settle();
  EXPECT_EQ(c.processes[c.trainers[0]].done.size(), 3U) << "it is not waited for again";
  c.CommandLate(c.control);
  c.Settle();
  EXPECT_TRUE(c.processes[c.control].admitted);
  EXPECT_FALSE(c.processes[c.control].paused);
  c.PublishAll(4);
  c.Settle();
  EXPECT_EQ(c.Served(c.a()).number, 4);
}

TEST(MachineCommand, AStepThatFailsKeepsRequestsOut) {
  Controlled c;
  c.StartControlled();
  c.PublishAll(1);
  c.Settle();
  c.Taken();
  c.processes[c.control].commands = false;
  c.PublishAll(2);
  c.Settle();
  c.CommandLate(c.control);  // Paused; now the caches cannot be flushed.
  c.processes[c.control].cannot = {Code::kUnavailable, "no such cache"};
  c.Settle();
  EXPECT_THAT(
      c.Taken(),
      ElementsAre(Command::kPause, Command::kActivate, Command::kDrain,    // Its tensors are of no version.
                  Command::kPause, Command::kActivate, Command::kResume))  // From engine b.
      << "kept out until it is filled";
  EXPECT_THAT(c.LastDone().engines[0].reason.message(), HasSubstr("cannot activate: no such cache"));
  EXPECT_EQ(c.Served(c.a()).number, 2);
}

TEST(MachineCommand, ItIsNotUpdatedWhileItsControlIsGone) {
  Controlled c;
  c.StartControlled();
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.control);
  c.PublishAll(2);
  c.Settle();
  EXPECT_EQ(c.Served(c.a()), kFirst);
  EXPECT_EQ(c.Served(c.engines["b"][0]).number, 2);
  EXPECT_EQ(ViewOf(c.state).engines[0].control, "gone");
  c.control = c.JoinControl("a");
  c.Settle();
  EXPECT_EQ(c.Served(c.a()).number, 2) << "from engine b";
  EXPECT_TRUE(c.processes[c.control].admitted);
}

/// One control of engine a leaves and another comes, each at any moment of an update and of the plans after.
struct Replaced : Controlled {
  explicit Replaced(uint32_t seed) : random(seed) {}

  void Run(protocol::Landing landing) {
    StartControlled(landing);
    PublishAll(1);
    Settle();
    const bool publishes_first = random() % 2 == 0;
    if (publishes_first) PublishAll(2);
    AdvanceAWhile();
    Do(MessageReceived{control, protocol::Leave{}});
    if (!publishes_first) PublishAll(2);
    AdvanceAWhile();
    control = JoinControl("a");
    AdvanceAWhile();
    Settle();
  }
  void AdvanceAWhile() {
    for (auto steps = random() % 40; steps > 0; --steps) {
      const bool delivers = random() % 4 != 0 && StepRandom(random);
      if (!delivers && Armed(TimerKind::kPlan)) Fire(TimerKind::kPlan);
    }
  }
  std::mt19937 random;
};

TEST(MachineCommand, AnotherControlBringsWhatTheEngineHasMissedInEveryOrder) {
  for (const auto landing : {protocol::Landing::kInPlace, protocol::Landing::kShadow}) {
    for (uint32_t seed = 1; seed <= 30; ++seed) {
      SCOPED_TRACE(StrCat("seed ", seed));
      Replaced c(seed);
      c.Run(landing);
      for (const SessionId rank : c.engines["a"]) EXPECT_EQ(c.Served(rank).number, 2);
      EXPECT_TRUE(c.processes[c.control].admitted && !c.processes[c.control].paused);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(MachineCommand, ADeathInTheMiddleIsTheEnginesAlone) {
  for (const auto landing : {protocol::Landing::kInPlace, protocol::Landing::kShadow}) {
    Controlled c;
    c.StartControlled(landing);
    c.processes[c.control].commands = false;
    c.PublishAll(1);
    c.Settle();
    c.KillAndNotice(c.control);
    c.Settle();
    EXPECT_EQ(c.Served(c.engines["b"][0]), kFirst);
    EXPECT_EQ(c.Served(c.a()).number, -1);
    EXPECT_THAT(c.LastDone().engines[0].reason.message(), HasSubstr("the control of engine a is lost"));
  }
}

TEST(MachineCommand, LeavingInTheMiddleIsAFailureToThePublisher) {
  Controlled c;
  c.StartControlled();
  c.processes[c.control].commands = false;
  c.PublishAll(1);
  c.Settle();
  c.Do(MessageReceived{c.control, protocol::Leave{}});
  c.Settle();
  EXPECT_EQ(c.LastDone().engines[0].reason.code(), Code::kUnavailable);
}

TEST(MachineCommand, WhenARankDiesRequestsAreKeptOut) {
  Controlled c;
  c.StartControlled();
  c.PublishAll(1);
  c.Settle();
  c.Taken();
  c.KillAndNotice(c.a(1));
  c.Settle();
  EXPECT_THAT(c.Taken(), ElementsAre(Command::kDrain));
}

TEST(MachineCommand, ANewControllerWaitsForTheControlThatRanksTellOf) {
  Controlled c;
  c.config.together = false;
  c.Start(1, {{"b", 1}});
  protocol::Hello hello;
  hello.name = {.role = protocol::Role::kInference, .engine = "a", .rank = 0};
  hello.world_size = 1;
  hello.state = EngineState::kServing;
  hello.version = kFirst;
  const SessionId rank = c.Join(hello);
  c.Do(MessageReceived{
      rank,
      protocol::Register{
          .shards = {}, .rules = {}, .state = EngineState::kServing, .version = kFirst, .controlled = true}});
  c.processes[rank].inbox.clear();
  c.Do(MessageReceived{rank, protocol::LandingMap{}});
  c.Settle();
  c.PublishAll(2);
  c.Settle();
  EXPECT_EQ(c.Served(rank), kFirst);
  EXPECT_EQ(ViewOf(c.state).engines[1].control, "gone");
  const SessionId control = c.JoinControl("a");
  c.Settle();
  EXPECT_GT(c.Served(rank).number, 1);
  EXPECT_TRUE(c.processes[control].admitted);
}

TEST(MachineCommand, ThereIsOneForAnEngine) {
  Controlled c;
  c.StartControlled();
  const SessionId second = c.JoinControl("a");
  c.Settle();
  EXPECT_THAT(c.processes[second].refusal.message(), HasSubstr("one EngineControl"));
  c.PublishAll(1);
  c.Settle();
  EXPECT_EQ(c.Served(c.a()), kFirst);
}

TEST(MachineCommand, OthersAreNotCommanded) {
  Controlled c;
  c.StartControlled();
  c.Do(MessageReceived{c.a(), protocol::EngineCommandResult{.order = 1, .status = {}}});
  EXPECT_THAT(c.processes[c.a()].refusal.message(), HasSubstr("its role does not send"));
  c.Do(MessageReceived{c.control, protocol::Published{.number = 1}});
  EXPECT_THAT(c.processes[c.control].refusal.message(), HasSubstr("its role does not send"));
}

}  // namespace
}  // namespace weightcast::control
