#include "worker/phase_clock.h"

#include <gtest/gtest.h>

namespace weightcast::worker {
namespace {

using protocol::SpanKind;

constexpr protocol::UpdateId kFirst{.term = {.number = 1, .id = 2}, .epoch = 1, .sequence = 1};
constexpr protocol::UpdateId kSecond{.term = {.number = 1, .id = 2}, .epoch = 1, .sequence = 2};

class Phases : public ::testing::Test {
 protected:
  /// The machine takes a step, `seconds` after the one before.
  std::optional<protocol::Spans> Step(double seconds, const InferenceState& state, double stalled = 0) {
    now_ += FromSeconds(seconds);
    stalled_ += stalled;
    return clock_.Look(state, now_, stalled_);
  }
  static InferenceState At(worker::Step step, const protocol::UpdateId& update = kFirst) {
    InferenceState state;
    state.step = step;
    if (step != worker::Step::kNone) state.update = update;
    return state;
  }

  PhaseClock clock_;
  TimePoint now_;
  double stalled_ = 0;
};

TEST_F(Phases, OfOneUpdateInTheirOrder) {
  EXPECT_FALSE(Step(1, At(worker::Step::kNone)));
  EXPECT_FALSE(Step(1, At(worker::Step::kRequested)));
  EXPECT_FALSE(Step(0.5, At(worker::Step::kRequested)));  // Nothing has changed.
  InferenceState reclaiming = At(worker::Step::kRequested);
  reclaiming.reclaiming = true;
  EXPECT_FALSE(Step(0.5, reclaiming));
  EXPECT_FALSE(Step(0.25, At(worker::Step::kWriting)));
  EXPECT_FALSE(Step(2, At(worker::Step::kReady), 0.5));
  InferenceState commit = At(worker::Step::kReady);
  commit.commit = true;
  EXPECT_FALSE(Step(3, commit));
  const auto spans = Step(4, At(worker::Step::kNone));
  ASSERT_TRUE(spans);
  EXPECT_EQ(spans->update, kFirst);
  const std::vector<protocol::Span> expected = {{.kind = SpanKind::kPause, .seconds = 1},
                                                {.kind = SpanKind::kReclaim, .seconds = 0.25},
                                                {.kind = SpanKind::kReceive, .seconds = 2, .stalled = 0.5},
                                                {.kind = SpanKind::kAwaitCommit, .seconds = 3},
                                                {.kind = SpanKind::kCall, .seconds = 4}};
  EXPECT_EQ(spans->spans, expected);
  EXPECT_FALSE(Step(1, At(worker::Step::kNone)));
}

TEST_F(Phases, OfTwoUpdatesWithoutAPauseBetweenThem) {
  EXPECT_FALSE(Step(1, At(worker::Step::kAborting)));
  const auto first = Step(1, At(worker::Step::kRequested, kSecond));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->update, kFirst);
  ASSERT_EQ(first->spans.size(), 1U);
  EXPECT_EQ(first->spans[0].kind, SpanKind::kAbort);
  const auto second = Step(1, At(worker::Step::kNone));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->update, kSecond);
}

}  // namespace
}  // namespace weightcast::worker
