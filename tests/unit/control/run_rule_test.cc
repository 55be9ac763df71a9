#include "control/run_rule.h"

#include "control/run_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

class RunRuleTest : public RuleBench {
 protected:
  void TrainerJoins(uint32_t rank, uint64_t incarnation) {
    protocol::Hello hello;
    hello.name = {.role = protocol::Role::kTrainer, .engine = "", .rank = rank};
    hello.incarnation = incarnation;
    rule.TrainerJoins(hello);
  }

  RunState state;
  RunRule rule{context, state};
};

TEST_F(RunRuleTest, AReplacedTrainerBeginsARunAndEndsTheOneBefore) {
  TrainerJoins(0, 10);
  TrainerJoins(1, 11);
  EXPECT_EQ(rule.run(), (protocol::Run{.number = 1, .origin = 77}));
  // The run that ends is still the present one then: what waits is answered with its versions.
  EXPECT_CALL(publications, EndRun).WillOnce([&](const Status&) { EXPECT_EQ(rule.run().number, 1U); });
  EXPECT_CALL(planning, MarkStale);
  TrainerJoins(1, 12);
  EXPECT_EQ(rule.run().number, 2U);
  EXPECT_EQ(state.members, (std::vector<RunMember>{{.rank = 1, .incarnation = 12}}));
}

TEST_F(RunRuleTest, AProcessThatComesBackBeginsNone) {
  TrainerJoins(0, 10);
  EXPECT_CALL(publications, EndRun).Times(0);
  TrainerJoins(0, 10);
  EXPECT_EQ(rule.run().number, 1U);
}

TEST_F(RunRuleTest, ARunIsPassedThatARankHasServed) {
  TrainerJoins(0, 10);
  const SessionId rank = Add("a", 0);
  roster.Change(Of(rank))->newest = {.run = 4, .number = 9, .origin = 5};
  rule.RankServed(Of(rank));
  EXPECT_EQ(rule.run(), (protocol::Run{.number = 5, .origin = 77}));
  EXPECT_TRUE(actions.empty()) << "it speaks through the other rules only";
}

}  // namespace
}  // namespace weightcast::control
