#pragma once

#include <optional>

#include "protocol/messages.h"
#include "weightcast/clock.h"
#include "worker/inference_machine.h"

namespace weightcast::worker {

/// What an inference rank spends an update on, from the states of its machine. A pure function of what it is
/// told.
class PhaseClock {
 public:
  /// After each step of the machine; `stalled`: seconds so far in which the process did not run. The spans of
  /// an update that has ended with this step.
  std::optional<protocol::Spans> Look(const InferenceState& state, TimePoint now, double stalled);

 private:
  void Leave(TimePoint now, double stalled);

  std::optional<protocol::SpanKind> phase_;
  uint32_t part_ = 0;
  TimePoint since_;
  double stalled_ = 0;  ///< At that time.
  protocol::Spans spans_;
};

}  // namespace weightcast::worker
