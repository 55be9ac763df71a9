#include "control/critical_path.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "unit/control/timelines.h"

namespace weightcast::control {
namespace {

using protocol::Span;
using protocol::SpanKind;

void ExpectTiles(const UpdateTimeline& update) {
  const std::vector<Segment> path = CriticalPath(update);
  ASSERT_FALSE(path.empty());
  double at = 0;
  for (const Segment& segment : path) {
    EXPECT_NEAR(segment.begin, at, 1e-9) << NameOf(segment.step);
    double sum = 0;
    for (const Cost& cost : segment.costs) {
      EXPECT_GT(cost.seconds, 0);
      sum += cost.seconds;
    }
    EXPECT_NEAR(sum, segment.seconds, 1e-9) << NameOf(segment.step);
    at = segment.begin + segment.seconds;
  }
  double last = 0;
  for (const RankTimeline& rank : update.ranks) last = std::max(last, rank.serving);
  EXPECT_NEAR(at, last, 1e-9);
}

TEST(CriticalPath, CoversTheUpdateWithoutGap) {
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) ExpectTiles(Made(random, {}));
}

TEST(CriticalPath, WhatIsLongestIsNamed) {
  struct Case {
    double Lengths::* what;
    Cause cause;
    bool of_source;
  };
  const Case cases[] = {
      {&Lengths::publish, Cause::kLateTrainer, true}, {&Lengths::pause, Cause::kLateEngine, false},
      {&Lengths::messages, Cause::kStopped, false},   {&Lengths::gate, Cause::kLateTrainer, true},
      {&Lengths::turn, Cause::kSender, true},         {&Lengths::stage, Cause::kSlowCast, true},
      {&Lengths::write, Cause::kLink, true},          {&Lengths::fence, Cause::kFence, false},
      {&Lengths::verify, Cause::kVerify, false},      {&Lengths::call, Cause::kLateEngine, false},
      {&Lengths::switching, Cause::kSwitch, false}};
  std::mt19937 random(7);
  for (const Case& one : cases) {
    for (int i = 0; i < 50; ++i) {
      const Who late{
          .rank = random() % kRanks, .source = random() % kSources, .what = one.what, .seconds = 0.3};
      const UpdateTimeline update = Made(random, late);
      ExpectTiles(update);
      const std::vector<Cost> costs = CostsOf(CriticalPath(update));
      ASSERT_FALSE(costs.empty());
      EXPECT_EQ(NameOf(costs.front().cause), NameOf(one.cause));
      EXPECT_GT(costs.front().seconds, 0.25);
      if (one.cause == Cause::kStopped) continue;  // Each step has messages: source or rank.
      EXPECT_EQ(costs.front().worker, one.of_source ? SourceName(late.source) : RankName(late.rank))
          << NameOf(one.cause);
      if (one.of_source && one.what != &Lengths::publish) {
        EXPECT_EQ(costs.front().victim, RankName(late.rank));
      }
    }
  }
}

TEST(CriticalPath, AStallOfTheControllerIsItsOwn) {
  std::mt19937 random(9);
  UpdateTimeline update = Made(random, {.rank = 1, .what = &Lengths::pause, .seconds = 0.3});
  update.stalls.push_back({.begin = update.opened, .seconds = 0.29});
  for (Span& span : update.ranks[1].spans)
    if (span.kind == SpanKind::kPause) span.seconds = 0.001;  // It answered in time.
  ExpectTiles(update);
  const std::vector<Cost> costs = CostsOf(CriticalPath(update));
  EXPECT_EQ(NameOf(costs.front().cause), "busy_controller");
  EXPECT_NEAR(costs.front().seconds, 0.29, 1e-3);  // And its own steps.
}

TEST(CriticalPath, AStallOfTheControllerWhileItHadToWaitAnywayIsNotItsOwn) {
  std::mt19937 random(9);
  UpdateTimeline update = Made(random, {.rank = 1, .what = &Lengths::pause, .seconds = 0.3});
  update.stalls.push_back({.begin = update.opened, .seconds = 0.29});
  ExpectTiles(update);
  const std::vector<Cost> costs = CostsOf(CriticalPath(update));
  EXPECT_EQ(NameOf(costs.front().cause), "late_engine");
  EXPECT_EQ(costs.front().worker, RankName(1));
  EXPECT_GT(costs.front().seconds, 0.29);
}

/// A trainer is heard 1.1 s after the other. For 1 s of it the controller did not run.
class Publishing : public ::testing::Test {
 protected:
  Publishing() : update_(Made(random_, {.source = 1, .what = &Lengths::publish, .seconds = 1.1})) {
    heard_ = update_.sources[1].published;
    update_.stalls.push_back({.begin = heard_ - 1, .seconds = 1});
  }
  /// By its own clock it published so long after the other.
  void Measured(size_t source, double published) {
    SourceTimeline& one = update_.sources[source];
    one.started = update_.ranks[0].parts[0].started;
    one.waited = one.started - published;
  }
  std::vector<Cost> Costs() {
    ExpectTiles(update_);
    return CostsOf(CriticalPath(update_));
  }

  std::mt19937 random_{15};
  UpdateTimeline update_;
  double heard_ = 0;
};

TEST_F(Publishing, AControllerThatDidNotRunHeardItLate) {
  Measured(1, 0.33);
  const std::vector<Cost> costs = Costs();
  EXPECT_EQ(NameOf(costs[0].cause), "busy_controller");
  EXPECT_NEAR(costs[0].seconds, heard_ - 0.33, 1e-3);  // And its own steps.
  EXPECT_EQ(NameOf(costs[1].cause), "late_trainer");
  EXPECT_EQ(costs[1].worker, SourceName(1));
  EXPECT_NEAR(costs[1].seconds, 0.33, 1e-6);
}

TEST_F(Publishing, ATrainerThatWasLateAnywayIsNamed) {
  Measured(1, heard_);
  const std::vector<Cost> costs = Costs();
  EXPECT_EQ(NameOf(costs[0].cause), "late_trainer");
  EXPECT_NEAR(costs[0].seconds, heard_, 1e-6);
}

TEST_F(Publishing, WithoutAStallTheControllerHeardItAtOnce) {
  update_.stalls.clear();
  Measured(1, 0.33);  // Its Start came late, for instance.
  const std::vector<Cost> costs = Costs();
  EXPECT_EQ(NameOf(costs[0].cause), "late_trainer");
  EXPECT_NEAR(costs[0].seconds, heard_, 1e-6);
}

TEST_F(Publishing, WhoHasMeasuredNothingMayHavePublishedBeforeTheStall) {
  const std::vector<Cost> costs = Costs();
  EXPECT_EQ(NameOf(costs[0].cause), "busy_controller");
  EXPECT_NEAR(costs[0].seconds, 1, 1e-3);
}

TEST_F(Publishing, OfThoseWhoAreHeardAtOnceTheLastByItsOwnMeasureIsNamed) {
  update_.sources[0].published = heard_ - 0.0001;
  Measured(0, 0.9);
  Measured(1, 0.2);
  const std::vector<Cost> costs = Costs();
  EXPECT_EQ(NameOf(costs[0].cause), "late_trainer");
  EXPECT_EQ(costs[0].worker, SourceName(0));
  EXPECT_NEAR(costs[0].seconds, 0.9, 1e-6);
}

TEST(CriticalPath, APauseCountsForItsOwnPart) {
  std::mt19937 random(19);
  UpdateTimeline update = Made(random, {.rank = 1, .what = &Lengths::pause, .seconds = 0.3});
  for (RankTimeline& rank : update.ranks) {
    const double begin = rank.parts[0].ready;
    rank.parts.push_back(
        {.asked = begin, .granted = begin + 0.2, .started = begin + 0.2, .ready = begin + 0.21});
    for (double* at : {&rank.committing, &rank.committed, &rank.serve, &rank.serving}) *at += 0.3;
  }
  double second = 0;  // Nobody measured why its grants took 0.2 s.
  for (const Segment& segment : CriticalPath(update)) {
    if (segment.step != PathStep::kGrant || segment.begin < 0.3) continue;
    for (const Cost& cost : segment.costs) second += cost.cause == Cause::kStopped ? cost.seconds : 0;
  }
  EXPECT_NEAR(second, 0.2, 0.02);
}

TEST(CriticalPath, ARankThatDidNotRunWhileBytesCameIsNamed) {
  std::mt19937 random(11);
  UpdateTimeline update = Made(random, {.rank = 2, .source = 1, .what = &Lengths::write, .seconds = 0.3});
  for (Span& span : update.ranks[2].spans)
    if (span.kind == SpanKind::kReceive) span.stalled = 0.29;
  ExpectTiles(update);
  const std::vector<Cost> costs = CostsOf(CriticalPath(update));
  EXPECT_EQ(NameOf(costs.front().cause), "stopped");
  EXPECT_EQ(costs.front().worker, RankName(2));
}

TEST(CriticalPath, AnUpdateThatDidNotEndGoesAsFarAsItCame) {
  std::mt19937 random(13);
  UpdateTimeline update = Made(random, {});
  for (RankTimeline& rank : update.ranks)
    rank.committing = rank.committed = rank.serve = rank.serving = kNever;
  const std::vector<Segment> path = CriticalPath(update);
  ASSERT_FALSE(path.empty());
  EXPECT_EQ(path.back().step, PathStep::kReceive);
  for (RankTimeline& rank : update.ranks) rank.parts[0].started = rank.parts[0].ready = kNever;
  EXPECT_EQ(CriticalPath(update).back().step, PathStep::kGrant);
  for (RankTimeline& rank : update.ranks) rank.parts[0].granted = kNever;
  EXPECT_TRUE(CriticalPath(update).empty());
}

}  // namespace
}  // namespace weightcast::control
