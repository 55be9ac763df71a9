#include "control/rank_rule.h"

#include "control/rank_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

using protocol::EngineState;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class RankRuleTest : public RuleBench {
 protected:
  RankRuleTest()
      : source(Add("", 0)), first(Add("a", 0, 2)), second(Add("a", 1)), engine{.group = Of(first).group} {
    sources = {source};
    plan.sources = sources;
    ON_CALL(engines, Of(engine.group)).WillByDefault([this] { return &engine; });
    rule.Open({{.session = first, .destination = 0}, {.session = second, .destination = 1}});
    rule.Ask(engine.group);
  }
  void Grant(SessionId rank) {
    rule.OnGranted(Of(rank), {.update = id, .grants = {{.source = 0, .slot = 1, .id = rank}}, .part = 0});
  }

  SessionId source, first, second;
  std::vector<SessionId> sources;
  EngineProgress engine;
  RanksState state;
  RankRule rule{context, state};
};

TEST_F(RankRuleTest, TheEngineHearsOfAStepWhenItsLastRankHasCome) {
  ASSERT_THAT(Done<SendAll>(), SizeIs(1));
  EXPECT_THAT(Done<SendAll>()[0].to, ElementsAre(first, second));
  EXPECT_CALL(engines, RanksCame).Times(0);
  Grant(first);
  EXPECT_CALL(engines, RanksCame(engine.group, RankStep::kGranted));
  Grant(second);
  EXPECT_EQ(Of(first).state, EngineState::kUpdating);
}

TEST_F(RankRuleTest, ASourceIsToldOnceOfAllItsGrants) {
  Grant(first);
  Grant(second);
  rule.Start({engine.group});
  const auto starts = Sent<protocol::Start>();
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_THAT(starts[0].grants, SizeIs(2));
}

TEST_F(RankRuleTest, AnAnswerOfAnotherAttemptIsDropped) {
  protocol::UpdateId other = id;
  ++other.attempt;
  EXPECT_CALL(engines, Out).Times(0);
  rule.OnReady(Of(first), {.update = other, .sources = {}});
  EXPECT_EQ(rule.Of(first)->step, RankStep::kAsked);
}

TEST_F(RankRuleTest, AnAnswerAheadOfTurnCostsTheEngineTheUpdate) {
  EXPECT_CALL(engines, Out(engine.group, _, &Of(first), 0));
  rule.OnReady(Of(first), {.update = id, .sources = {}});
}

TEST_F(RankRuleTest, OnlyRanksThatLackBytesLoseTheirSources) {
  Grant(first);
  Grant(second);
  rule.Start({engine.group});
  rule.OnReady(Of(first), {.update = id, .sources = {}});
  rule.LoseSources(engine.group);
  EXPECT_FALSE(Of(first).fencing);
  EXPECT_EQ(Of(second).fencing, id);
  EXPECT_FALSE(rule.IsSettled(engine.group));
  rule.OnAborted(Of(second), {.update = id, .lost = false, .landed = {}});
  EXPECT_TRUE(rule.IsSettled(engine.group));
  EXPECT_EQ(rule.Of(first)->step, RankStep::kReady);
}

TEST_F(RankRuleTest, WhatItServesWithoutOrderEndsTheSession) {
  EXPECT_CALL(membership, Refuse(ElementsAre(first), _));
  rule.OnServing(Of(first), {.update = id, .version = {.run = 9, .number = 9, .origin = 1}});
}

}  // namespace
}  // namespace weightcast::control
