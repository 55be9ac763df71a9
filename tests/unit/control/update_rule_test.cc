#include "control/update_rule.h"

#include "control/update_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::Return;
using ::testing::SizeIs;

class UpdateRuleTest : public RuleBench {
 protected:
  UpdateRuleTest() : trainer(Add("", 0)), a(Add("a", 0)), b(Add("b", 0)) {
    sources = {trainer};
    destinations = {a, b};
    plan.epoch = 3;
    plan.sources = sources;
    plan.destinations = destinations;
  }
  void Open(std::vector<GroupId> which, bool is_fresh = true) {
    rule.Open(
        {.version = version, .fresh = is_fresh, .trainers = {}, .engines = std::move(which), .absent = {}});
    SetCounts(EngineStep::kGranting);
  }
  void SetCounts(EngineStep step) {
    counts = {};
    counts.steps[static_cast<size_t>(step)] = 1;
  }

  SessionId trainer, a, b;
  std::vector<SessionId> sources, destinations;
  UpdatesState state;
  UpdateRule rule{context, state};
};

TEST_F(UpdateRuleTest, OnlyRanksOfEnginesThatTakePartAreAsked) {
  EXPECT_CALL(ranks, Open(ElementsAre(Field(&Ranks::Seat::destination, 1))));
  EXPECT_CALL(engines, BeginGrants(Of(b).group));
  EXPECT_CALL(publications, Opened);
  Open({Of(b).group});
  EXPECT_EQ(rule.update().id.sequence, 1U);
  EXPECT_EQ(rule.update().id.epoch, 3U);
}

TEST_F(UpdateRuleTest, AnotherTryOfAHeldVersionIsAnotherAttempt) {
  Open({Of(a).group});
  SetCounts(EngineStep::kDone);
  rule.Advance();
  EXPECT_FALSE(rule.open());
  Open({Of(b).group}, /*is_fresh=*/false);
  EXPECT_EQ(rule.update().id.sequence, 1U);
  EXPECT_EQ(rule.update().id.attempt, 1U);
}

TEST_F(UpdateRuleTest, SourcesAreReleasedOnceAndNotBeforeAllHaveEveryByte) {
  Open({Of(a).group});
  SetCounts(EngineStep::kWriting);
  rule.Advance();
  EXPECT_THAT(Sent<protocol::Release>(), IsEmpty());
  SetCounts(EngineStep::kCommitting);
  rule.Advance();
  rule.Advance();
  EXPECT_THAT(Sent<protocol::Release>(), SizeIs(1));
}

TEST_F(UpdateRuleTest, PublishersHearOfAnAbortOnlyIfNobodyGoesOn) {
  Open({Of(a).group});
  SetCounts(EngineStep::kCommitting);
  rule.Abort({Code::kCancelled, "cancelled"}, EngineStep::kReady);
  EXPECT_THAT(Sent<protocol::Abort>(), IsEmpty());
  SetCounts(EngineStep::kWriting);
  EXPECT_CALL(engines, OutUpTo(EngineStep::kReady, _));
  rule.Abort({Code::kCancelled, "cancelled"}, EngineStep::kReady);
  EXPECT_THAT(Sent<protocol::Abort>(), SizeIs(1));
}

TEST_F(UpdateRuleTest, ItsEndClosesTheOtherRulesAndAnswersThePublishers) {
  Open({Of(a).group});
  SetCounts(EngineStep::kOut);
  const EngineEnd end{.group = Of(a).group, .reason = {Code::kTimedOut, "no grant"}};
  EXPECT_CALL(engines, Close).WillOnce(Return(std::vector{end}));
  EXPECT_CALL(ranks, Close).WillOnce(Return(std::vector<Arrival>{}));
  EXPECT_CALL(repair, Close);
  EXPECT_CALL(deadlines, Close);
  EXPECT_CALL(opening, NoteEnd);
  EXPECT_CALL(planning, MarkStale);
  rule.Advance();
  const auto done = Sent<protocol::Done>();
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_FALSE(done[0].met_policy);
  EXPECT_EQ(done[0].reason.message(), "no grant");
  EXPECT_LT(state.committed.number, 0);
}

TEST_F(UpdateRuleTest, ASourceThatSaysItIsBrokenStopsEveryEngineThatWasNotToldToSwitch) {
  Open({Of(a).group});
  EXPECT_CALL(engines, OutUpTo(EngineStep::kHalting, _));
  rule.OnFailed(Of(trainer), {.update = rule.update().id, .reason = {Code::kCorrupt, "the file changed"}});
}

}  // namespace
}  // namespace weightcast::control
