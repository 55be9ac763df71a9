#include "worker/phase_clock.h"

#include <iterator>
#include <utility>

namespace weightcast::worker {
namespace {

using protocol::SpanKind;

std::optional<SpanKind> PhaseOf(const InferenceState& state) {
  using enum SpanKind;
  if (state.step == Step::kNone) return std::nullopt;
  if (state.step == Step::kRequested && state.reclaiming) return kReclaim;
  if (state.step == Step::kReady && state.commit) return kCall;
  static constexpr SpanKind kPhases[] = {kPause,       kOpen,   kReceive, kFence,      kVerify,
                                         kAwaitCommit, kSwitch, kProcess, kAwaitServe, kAbort};
  static_assert(std::size(kPhases) == static_cast<size_t>(Step::kAborting));
  return kPhases[static_cast<size_t>(state.step) - 1];  // By Step, from kRequested on.
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
