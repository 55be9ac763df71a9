#include "control/engine_rule.h"

#include "control/engine_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

using protocol::Command;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::Return;
using Answer = Commands::Answer;

class EngineRuleTest : public RuleBench {
 protected:
  EngineRuleTest() : a(Of(Add("a", 0)).group), b(Of(Add("b", 0)).group) {
    ON_CALL(commands, Ask).WillByDefault(Return(Answer::kDone));
    ON_CALL(ranks, AllAt).WillByDefault(Return(false));
    rule.Open({a, b}, EngineStep::kGranting);
  }
  [[nodiscard]] EngineStep StepOf(GroupId group) const { return rule.Of(group)->step; }
  void Grant(GroupId group) { rule.RanksCame(group, RankStep::kGranted); }

  GroupId a, b;
  EnginesState state;
  EngineRule rule{context, state};
};

TEST_F(EngineRuleTest, TogetherNobodyStartsBeforeAllHaveGranted) {
  ON_CALL(updates, SwitchesTogether).WillByDefault(Return(true));
  EXPECT_CALL(ranks, Start).Times(0);
  Grant(a);
  rule.Advance();
  EXPECT_CALL(ranks, Start(ElementsAre(a, b)));
  Grant(b);
  rule.Advance();
  EXPECT_EQ(StepOf(a), EngineStep::kWriting);
}

TEST_F(EngineRuleTest, EachStartsByItself) {
  EXPECT_CALL(ranks, Start(ElementsAre(a)));
  EXPECT_CALL(updates, MarkStarted);
  Grant(a);
  rule.Advance();
  EXPECT_EQ(StepOf(a), EngineStep::kWriting);
  EXPECT_EQ(StepOf(b), EngineStep::kGranting);
}

TEST_F(EngineRuleTest, AnEngineGoesToItsEndInOneGoWithoutAControl) {
  Grant(a);
  rule.Advance();
  rule.RanksCame(a, RankStep::kReady);
  EXPECT_EQ(StepOf(a), EngineStep::kReady);
  EXPECT_CALL(ranks, Commit(a));
  rule.Advance();
  EXPECT_EQ(StepOf(a), EngineStep::kCommitting);
  EXPECT_CALL(ranks, Serve(a));
  rule.RanksCame(a, RankStep::kCommitted);
  EXPECT_EQ(StepOf(a), EngineStep::kServing);
  rule.RanksCame(a, RankStep::kServing);
  EXPECT_EQ(StepOf(a), EngineStep::kDone);
}

TEST_F(EngineRuleTest, ACommandIsWaitedFor) {
  ON_CALL(commands, Ask(_, Command::kPause, _)).WillByDefault(Return(Answer::kAwaited));
  Group& group = roster.Change(*roster.FindGroup(a));
  group.controlled = true;
  EXPECT_CALL(ranks, Ask).Times(0);
  rule.BeginGrants(a);
  EXPECT_EQ(StepOf(a), EngineStep::kPausing);
  EXPECT_CALL(ranks, Ask(a));
  rule.CommandDone(a);
  EXPECT_EQ(StepOf(a), EngineStep::kGranting);
}

TEST_F(EngineRuleTest, AServeIsNeverTakenBack) {
  state.Move(*state.Of(a), EngineStep::kServing);
  state.Move(*state.Of(b), EngineStep::kCommitting);
  const Status reason(Code::kPeerDead, "gone");
  EXPECT_CALL(ranks, Abort(a, _, _)).Times(0);
  EXPECT_CALL(ranks, Abort(b, _, _));
  EXPECT_CALL(repair, EngineOut(b, _));
  rule.LoseRank(a, reason, nullptr);
  rule.LoseRank(b, reason, nullptr);
  EXPECT_EQ(StepOf(a), EngineStep::kDone);
  EXPECT_EQ(StepOf(b), EngineStep::kOut);
  const std::vector<EngineEnd> ends = rule.Close();
  EXPECT_TRUE(ends.at(0).committed);
  EXPECT_EQ(ends.at(1).reason, reason);
  EXPECT_EQ(rule.Of(a), nullptr);
}

TEST_F(EngineRuleTest, WithoutASourceThoseThatHaveEveryByteGoOn) {
  state.Move(*state.Of(a), EngineStep::kReady);
  state.Move(*state.Of(b), EngineStep::kWriting);
  EXPECT_CALL(ranks, LoseSources(b));
  rule.LoseSources({Code::kPeerDead, "a trainer died"});
  EXPECT_EQ(StepOf(a), EngineStep::kReady);
  EXPECT_EQ(StepOf(b), EngineStep::kSourceless);
}

TEST_F(EngineRuleTest, LateIsWhoHasNotGrantedWhenTheOthersAreThrough) {
  state.Move(*state.Of(b), EngineStep::kDone);
  EXPECT_FALSE(rule.lateness().waiting);
  EXPECT_TRUE(rule.lateness().through);
  rule.DropLate();
  EXPECT_EQ(StepOf(a), EngineStep::kOut);
  const std::vector<EngineEnd> ends = rule.Close();
  EXPECT_TRUE(ends.at(0).late);
  EXPECT_FALSE(ends.at(1).late);
}

}  // namespace
}  // namespace weightcast::control
