#include "worker/phase_clock.h"

#include <utility>

namespace weightcast::worker {
namespace {

using protocol::SpanKind;

std::optional<SpanKind> PhaseOf(const InferenceState& state) {
  switch (state.step) {
    case Step::kNone:
      return std::nullopt;
    case Step::kRequested:
      return state.reclaiming ? SpanKind::kReclaim : SpanKind::kPause;
    case Step::kOpening:
      return SpanKind::kOpen;
    case Step::kWriting:
      return SpanKind::kReceive;
    case Step::kFencing:
      return SpanKind::kFence;
    case Step::kVerifying:
      return SpanKind::kVerify;
    case Step::kReady:
      return state.commit ? SpanKind::kCall : SpanKind::kAwaitCommit;
    case Step::kSwitching:
      return SpanKind::kSwitch;
    case Step::kSwitched:
      return SpanKind::kProcess;
    case Step::kCommitted:
      return SpanKind::kAwaitServe;
    case Step::kAborting:
      return SpanKind::kAbort;
  }
  return std::nullopt;
}

}  // namespace

std::optional<protocol::Spans> PhaseClock::Look(const InferenceState& state, TimePoint now, double stalled) {
  const auto phase = PhaseOf(state);
  const bool same = phase.has_value() && state.update == spans_.update;
  if (same && phase == phase_ && state.part == part_) return std::nullopt;
  if (phase_) Leave(now, stalled);
  std::optional<protocol::Spans> ended;
  if (!same) {
    if (!spans_.spans.empty()) ended = std::move(spans_);
    spans_ = {};
    if (phase) spans_.update = state.update;
  }
  phase_ = phase;
  part_ = state.part;
  since_ = now;
  stalled_ = stalled;
  return ended;
}

void PhaseClock::Leave(TimePoint now, double stalled) {
  if (spans_.spans.size() == protocol::kMaxSpans) return;
  spans_.spans.push_back(
      {.kind = *phase_, .part = part_, .seconds = Seconds(now - since_), .stalled = stalled - stalled_});
}

}  // namespace weightcast::worker
