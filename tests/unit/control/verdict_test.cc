#include "control/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "control/explain_json.h"
#include "unit/control/timelines.h"

namespace weightcast::control {
namespace {

using ::testing::HasSubstr;

class Judging : public ::testing::Test {
 protected:
  /// One more update, with what came before as its history.
  const Explained& Update(UpdateTimeline timeline) {
    history_.push_back(std::make_shared<const Explained>(Explain(std::move(timeline), history_)));
    return *history_.back();
  }
  const Explained& Update(const Who& late = {}) { return Update(Made(random_, late)); }
  void Usual(int count) {
    for (int i = 0; i < count; ++i) EXPECT_FALSE(Update().verdict.slow) << history_.back()->verdict.text;
  }
  /// Changes what the sources told of one route, or of all.
  template <typename Change>
  static UpdateTimeline With(UpdateTimeline update, const std::string& source, const std::string& to,
                             const Change& change) {
    for (auto& one : update.sources)
      for (auto& [rank, span] : one.sendings)
        if ((source.empty() || one.name == source) && (to.empty() || rank == to) &&
            span.kind == protocol::SpanKind::kWrite)
          change(span);
    return update;
  }

  std::mt19937 random_{17};
  Explanations history_;
};

TEST_F(Judging, NoFalseAlarmAmongUsualUpdates) { Usual(300); }

TEST_F(Judging, NothingIsSlowWithoutAHistory) {
  Usual(static_cast<int>(kLeastHistory) - 1);
  const Verdict& verdict = Update({.rank = 1, .what = &Lengths::pause, .seconds = 0.3}).verdict;
  EXPECT_FALSE(verdict.slow);
  EXPECT_EQ(verdict.cause, Cause::kLateEngine);
  EXPECT_THAT(verdict.text, HasSubstr("too short"));
}

TEST_F(Judging, ALateEngineIsNamed) {
  Usual(20);
  const Verdict& verdict = Update({.rank = 1, .what = &Lengths::pause, .seconds = 0.3}).verdict;
  EXPECT_TRUE(verdict.slow);
  EXPECT_EQ(verdict.cause, Cause::kLateEngine);
  EXPECT_EQ(verdict.worker, RankName(1));
  EXPECT_GT(verdict.share, 0.8);
  EXPECT_THAT(verdict.text, HasSubstr("engine e1 rank 0 let the update wait"));
  EXPECT_NEAR(verdict.usual, 0.002, 0.001);
}

TEST_F(Judging, SlowUpdatesDoNotHideTheNextOne) {
  Usual(12);
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(Update({.rank = 1, .what = &Lengths::pause, .seconds = 0.3}).verdict.slow) << i;
    Usual(2);
  }
}

TEST_F(Judging, WhatStaysSlowIsUsualAfterAWhile) {
  const Who late{.rank = 1, .what = &Lengths::pause, .seconds = 0.3};
  Usual(12);
  for (int i = 0; i < 30; ++i) Update(late);
  EXPECT_FALSE(Update(late).verdict.slow);
}

TEST_F(Judging, WhatAStallWatchDoesNotNoticeIsNotSlow) {
  Usual(20);
  EXPECT_FALSE(Update({.rank = 1, .what = &Lengths::pause, .seconds = 0.04}).verdict.slow);
  EXPECT_TRUE(Update({.rank = 1, .what = &Lengths::pause, .seconds = 0.065}).verdict.slow);
}

TEST_F(Judging, WhatIsLessThanTwiceAsLongIsNotSlow) {
  const Who usual{.rank = 1, .what = &Lengths::pause, .seconds = 0.3};
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(Update(usual).verdict.slow);
  EXPECT_FALSE(Update({.rank = 1, .what = &Lengths::pause, .seconds = 0.5}).verdict.slow);
  EXPECT_TRUE(Update({.rank = 1, .what = &Lengths::pause, .seconds = 0.8}).verdict.slow);
}

TEST_F(Judging, WhatHistoryVariesByIsNotSlow) {
  std::uniform_real_distribution<double> busy(0, 0.3);
  for (int i = 0; i < 40; ++i) Update({.rank = 1, .what = &Lengths::pause, .seconds = busy(random_)});
  EXPECT_FALSE(Update({.rank = 1, .what = &Lengths::pause, .seconds = 0.5}).verdict.slow);
  EXPECT_TRUE(Update({.rank = 1, .what = &Lengths::pause, .seconds = 1.5}).verdict.slow);
}

TEST_F(Judging, WhatHasGrownEverywhereHasNoOneCause) {
  Usual(20);
  const auto grown = [&](double seconds) {
    return MadeOf(random_, {{.rank = 1, .what = &Lengths::pause, .seconds = seconds},
                            {.rank = 1, .source = 1, .what = &Lengths::gate, .seconds = 0.03},
                            {.rank = 1, .source = 1, .what = &Lengths::stage, .seconds = 0.03},
                            {.rank = 1, .source = 1, .what = &Lengths::write, .seconds = 0.03},
                            {.rank = 1, .what = &Lengths::fence, .seconds = 0.03},
                            {.rank = 1, .what = &Lengths::switching, .seconds = 0.03}});
  };
  const Verdict& verdict = Update(grown(0.03)).verdict;
  EXPECT_FALSE(verdict.slow);
  EXPECT_THAT(verdict.text, HasSubstr("s longer than usual, but no one cause accounts for it"));
  EXPECT_TRUE(Update(grown(0.2)).verdict.slow);
}

TEST_F(Judging, OfTwoCausesAtOnceTheLongerOneIsNamedAndTheOtherFollows) {
  Usual(20);
  const Explained& update =
      Update(MadeOf(random_, {{.rank = 1, .what = &Lengths::pause, .seconds = 0.3},
                              {.rank = 2, .what = &Lengths::switching, .seconds = 0.2}}));
  EXPECT_TRUE(update.verdict.slow);
  EXPECT_EQ(update.verdict.cause, Cause::kLateEngine);
  ASSERT_GT(update.costs.size(), 1U);
  EXPECT_EQ(update.costs[1].cause, Cause::kSwitch);
  EXPECT_EQ(update.costs[1].worker, RankName(2));
}

TEST_F(Judging, ASlowRouteIsNamedWithItsRate) {
  Usual(20);
  const Verdict& verdict = Update({.rank = 2, .source = 1, .what = &Lengths::write, .seconds = 0.3}).verdict;
  EXPECT_TRUE(verdict.slow);
  EXPECT_EQ(verdict.cause, Cause::kLink);
  EXPECT_EQ(verdict.worker, SourceName(1));
  EXPECT_EQ(verdict.victim, RankName(2));
  EXPECT_THAT(verdict.text, HasSubstr("engine e2 rank 0 received 1.05 MB from trainer 1 at"));
  EXPECT_THAT(verdict.text, HasSubstr("of the best rate seen"));
}

TEST_F(Judging, ARouteThatIsAlwaysBehindTheOthersIsSlow) {
  const Who late{.rank = 0, .source = 0, .what = &Lengths::write, .seconds = 0.1};
  for (size_t i = 0; i < kLeastHistory; ++i) EXPECT_FALSE(Update(late).verdict.slow);
  const Verdict& verdict = Update(late).verdict;
  EXPECT_TRUE(verdict.slow);
  EXPECT_EQ(verdict.cause, Cause::kLink);
  EXPECT_EQ(verdict.victim, RankName(0));
}

TEST_F(Judging, ALinkIsBlamedForLanesChunksAndRunsOnlyWhereTheyAreFewOrSmall) {
  const Who late{.rank = 0, .source = 0, .what = &Lengths::write, .seconds = 0.3};
  const auto usual = [](protocol::Span& span) {
    span.chunk = 1 << 20;
    span.pieces = 1;
    span.lanes = 4;
  };
  for (int i = 0; i < 8; ++i) Update(With(Made(random_, {}), "", "", usual));
  const auto cause = [&](const auto& change) {
    UpdateTimeline update =
        With(With(Made(random_, late), "", "", usual), SourceName(0), RankName(0), change);
    return Explain(std::move(update), history_).verdict;
  };
  EXPECT_EQ(cause([](protocol::Span&) {}).cause, Cause::kLink);
  EXPECT_EQ(cause([](protocol::Span& span) { span.lanes = 3; }).cause, Cause::kLaneDown);
  EXPECT_EQ(cause([](protocol::Span& span) { span.lanes = 0; }).cause, Cause::kLink) << "none is told";
  EXPECT_EQ(cause([](protocol::Span& span) { span.chunk = 4096; }).cause, Cause::kSmallChunks);
  const Verdict tiny = cause([](protocol::Span& span) { span.pieces = 4096; });
  EXPECT_EQ(tiny.cause, Cause::kTinyTensors);
  EXPECT_THAT(tiny.text, HasSubstr("in 4096 runs of 256 bytes each"));
}

TEST_F(Judging, AnUpdateThatNobodyTookPartInSaysSo) {
  const Explained& update = Update(UpdateTimeline{.model = "m", .reason = "nobody"});
  EXPECT_FALSE(update.verdict.slow);
  EXPECT_THAT(update.verdict.text, HasSubstr("nothing is known"));
}

TEST_F(Judging, JsonHasTheNewestThatAreAskedFor) {
  Usual(3);
  EXPECT_EQ(ToJson(Choose(history_, {.model = {}, .number = 7})), "[]");
  const Explanations chosen = Choose(history_, {.model = {}, .last = 2});
  ASSERT_EQ(chosen.size(), 2U);
  EXPECT_EQ(chosen.back(), history_.back());
  const std::string text = ToJson(chosen);
  EXPECT_THAT(text, HasSubstr(R"("verdict":{"slow":false,"cause":"link")"));
  EXPECT_THAT(text, HasSubstr(R"("step":"receive")"));
}

}  // namespace
}  // namespace weightcast::control
