#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/control/cluster.h"

// Engines that take an update in several parts.
namespace weightcast::control {
namespace {

using protocol::EngineState;
using ::testing::HasSubstr;

/// Trainers, engine a of two ranks that takes three parts, engine b of one that takes all at once.
struct InParts : Cluster {
  SessionId a0 = 0, a1 = 0, b = 0;

  explicit InParts(uint32_t trainer_count = 1) {
    for (uint32_t rank = 0; rank < trainer_count; ++rank)
      trainers.push_back(JoinTrainer(rank, trainer_count));
    a0 = JoinRank("a", 0, 2);
    a1 = JoinRank("a", 1, 2);
    processes[a0].parts = processes[a1].parts = 3;
    b = JoinRank("b", 0, 1);
    Settle();
    EXPECT_EQ(state.plan.phase, PlanPhase::kPrepared);
  }
  [[nodiscard]] const Target& TargetOf(const std::string& engine) const {
    for (const Target& target : state.engines.targets)
      if (target.group == GroupOf(engine)) return target;
    ADD_FAILURE() << engine << " is not in the update";
    return state.engines.targets.front();
  }
};

TEST(MachineParts, AllCommitAfterTheLastPart) {
  for (const bool together : {true, false}) {
    InParts c;
    c.config.together = together;
    for (int64_t number = 1; number <= 3; ++number) {
      c.PublishAll(number);
      c.Settle();
      for (const SessionId rank : {c.a0, c.a1, c.b}) EXPECT_EQ(c.Served(rank).number, number);
      EXPECT_EQ(c.processes[c.a0].part, 2U);
      EXPECT_EQ(c.processes[c.b].part, 0U);
      EXPECT_TRUE(c.LastDone().met_policy);
    }
  }
}

TEST(MachineParts, APartIsAskedForWhenAllRanksOfTheEngineHaveTheOneBefore) {
  InParts c;
  c.processes[c.a1].deaf = true;
  c.PublishAll(1);
  c.Settle();
  EXPECT_TRUE(c.processes[c.a0].ready);
  EXPECT_EQ(c.processes[c.a0].part, 0U);
  c.processes[c.a1].deaf = false;
  c.Settle();
  EXPECT_EQ(c.Served(c.a0), kFirst);
}

TEST(MachineParts, WhoHandsOnNoLongerThanCommitTimeoutIsInTheUpdate) {
  InParts c;
  c.config.together = false;
  c.processes[c.a0].deaf = c.processes[c.a1].deaf = true;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.a0].grants = false;  // From the second part on.
  c.processes[c.a0].deaf = c.processes[c.a1].deaf = false;
  c.Settle();
  ASSERT_EQ(c.TargetOf("a").part, 1U);
  EXPECT_EQ(c.timers.at({TimerKind::kStep, c.GroupOf("a")}), c.config.commit_timeout);
  c.Fire(TimerKind::kStep, c.GroupOf("a"));
  c.Settle();
  EXPECT_EQ(c.StateOf(c.a1), EngineState::kFailed);
  EXPECT_EQ(c.Served(c.b), kFirst);
  const auto& engines = c.LastDone().engines;
  ASSERT_EQ(engines.size(), 2U);
  EXPECT_THAT(engines[0].reason.message(), HasSubstr("engine a rank 0 has not handed on the last group"));
}

TEST(MachineParts, ASourceThatIsLostAfterTheFirstPartCostsTheEngine) {
  InParts c(2);
  c.sharded = false;  // The other has every byte.
  c.config.together = false;
  c.processes[c.a0].deaf = c.processes[c.a1].deaf = true;
  c.PublishAll(1);
  c.Settle();
  c.processes[c.a0].deaf = false;
  c.Settle();
  ASSERT_TRUE(c.processes[c.a0].ready) << "a rank has a part, and the other has not";
  c.KillAndNotice(c.trainers[0]);
  c.processes[c.a1].deaf = false;
  c.Settle();
  EXPECT_EQ(c.StateOf(c.a0), EngineState::kServing) << "it is filled again, from its first part on";
  EXPECT_EQ(c.Served(c.a0), kFirst);
  const auto& done = c.LastDone(1);
  EXPECT_EQ(done.engines[0].engine, "a");
  EXPECT_FALSE(done.engines[0].committed);
}

TEST(MachineParts, ASourceThatIsLostBeforeIsReplaced) {
  InParts c(2);
  c.sharded = false;
  c.processes[c.a0].grants = false;
  c.PublishAll(1);
  c.Settle();
  c.KillAndNotice(c.trainers[0]);
  c.GrantLate(c.a0);
  c.Settle();
  for (const SessionId rank : {c.a0, c.a1, c.b}) EXPECT_EQ(c.Served(rank), kFirst);
  EXPECT_TRUE(c.LastDone(1).met_policy);
}

TEST(MachineParts, APartThatWasNotAskedForCostsTheEngine) {
  InParts c;
  c.config.together = false;
  c.processes[c.a0].grants = false;
  c.PublishAll(1);
  c.Settle();
  c.Do(
      MessageReceived{c.a0, protocol::Granted{.update = *c.processes[c.a0].update, .grants = {}, .part = 1}});
  c.Settle();
  EXPECT_THAT(c.log, testing::Contains(testing::AllOf(HasSubstr("sent Granted for update"),
                                                      HasSubstr("group of tensors 1, out of order"))));
}

}  // namespace
}  // namespace weightcast::control
