#include "control/repair_rule.h"

#include "control/repair_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::Return;

class RepairRuleTest : public RuleBench {
 protected:
  RepairRuleTest() : first(Add("", 0, 2)), second(Add("", 1)), a(Add("a", 0)), b(Add("b", 0)) {
    open = true;
    trainers = {first, second};
    plan.epoch = 1;
    plan.phase = PlanPhase::kPrepared;
    plan.stale = false;
    Lacks(Of(b).group);
    ON_CALL(ranks, IsSettled).WillByDefault(Return(true));
    ON_CALL(planning, PlanRepair).WillByDefault(Return(2));
    rule.Open(Holders::kTrainersLeft);
  }
  void Lacks(GroupId group) {
    counts = {};
    counts.steps[static_cast<size_t>(EngineStep::kSourceless)] = 1;
    ON_CALL(engines, GroupsAt(EngineStep::kSourceless)).WillByDefault(Return(std::vector{group}));
  }
  /// It serves the version of the update, and gives it to others.
  void Serves(SessionId rank) {
    auto edit = roster.Change(Of(rank));
    edit->state = protocol::EngineState::kServing;
    edit->version = edit->holds = version;
  }

  SessionId first, second, a, b;
  RepairState state;
  RepairRule rule{context, state};
};

TEST_F(RepairRuleTest, TheTrainersThatAreLeftComeFirst) {
  EXPECT_CALL(engines, LoseSources);
  rule.LoseSource(Of(first), {Code::kPeerDead, "gone"}, std::nullopt);
  EXPECT_CALL(planning, PlanRepair(ElementsAre(second), false, ElementsAre(Of(b).group)));
  rule.Advance();
  EXPECT_TRUE(rule.IsPlanned());
}

TEST_F(RepairRuleTest, ThenEnginesThenAllTrainersThenNobody) {
  Serves(a);
  rule.LoseSource(Of(first), {Code::kUnavailable, "no path"}, Of(b).group);
  rule.LoseSource(Of(second), {Code::kUnavailable, "no path"}, Of(b).group);
  EXPECT_CALL(planning, PlanRepair(ElementsAre(a), true, _)).WillOnce(Return(2));
  rule.Advance();
  EXPECT_CALL(planning, Drop).Times(2);
  rule.PlanFailed({Code::kInvalidArgument, "holes"});
  EXPECT_CALL(planning, PlanRepair(ElementsAre(first, second), false, _)).WillOnce(Return(3));
  rule.Advance();
  rule.PlanFailed({Code::kInvalidArgument, "holes"});
  EXPECT_CALL(updates, Abort);
  rule.Advance();
}

TEST_F(RepairRuleTest, AnEngineThatHasFailedAsASourceGivesNoMore) {
  Serves(a);
  trainers = {};
  EXPECT_CALL(updates, Abort);
  EXPECT_CALL(engines, LoseSources).Times(0);
  rule.LoseSource(Of(a), {Code::kPeerDead, "gone"}, std::nullopt);
}

TEST_F(RepairRuleTest, NothingIsRepairedWhenAllHaveEveryByte) {
  counts = {};
  counts.steps[static_cast<size_t>(EngineStep::kReady)] = 1;
  EXPECT_CALL(engines, LoseSources).Times(0);
  EXPECT_CALL(updates, Abort).Times(0);
  rule.LoseSource(Of(first), {Code::kPeerDead, "gone"}, std::nullopt);
}

TEST_F(RepairRuleTest, AsManyEnginesAreFilledAsThereAreHolders) {
  open = false;
  Serves(a);
  Add("c", 0);
  EXPECT_CALL(updates, OpenFromEngines).WillOnce([&](const NewUpdate& update) {
    EXPECT_THAT(update.engines, ElementsAre(Of(b).group));
    EXPECT_EQ(update.version, version);
  });
  EXPECT_TRUE(rule.OpenFromPeers());
}

}  // namespace
}  // namespace weightcast::control
