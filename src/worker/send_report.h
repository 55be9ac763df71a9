#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "protocol/messages.h"
#include "weightcast/clock.h"
#include "worker/machine_actions.h"
#include "worker/stall_watch.h"

namespace weightcast::worker {

/// What the time of one sending goes into; told each change of what it does.
class SendClock {
 public:
  using Kind = protocol::SpanKind;
  /// Those of a source.
  static constexpr std::array kKinds = {Kind::kGate, Kind::kTurn, Kind::kRead, Kind::kStage, Kind::kWrite};

  void Begin(Kind kind) {
    kind_ = kind;
    since_ = Clock::now();
  }
  void Enter(Kind kind) {
    if (kind == kind_) return;
    const TimePoint now = Clock::now();
    seconds_[IndexOf(kind_)] += Seconds(now - std::exchange(since_, now));
    kind_ = kind;
  }
  [[nodiscard]] double seconds(Kind kind) const { return seconds_[IndexOf(kind)]; }

 private:
  static size_t IndexOf(Kind kind) { return static_cast<size_t>(kind) - static_cast<size_t>(kKinds[0]); }

  Kind kind_ = Kind::kTurn;
  TimePoint since_;
  std::array<double, kKinds.size()> seconds_{};
};

/// Gathers what a source's sendings of an update took, for one message. The loop's.
class SendReport {
 public:
  explicit SendReport(Loop& loop) : stalls_(loop) {}

  /// A trainer: its user has published or announced this number.
  void Offered(int64_t number, TimePoint at);
  void Begun(const StartOrder& start);
  /// The spans of all that was sent, once nothing more of the update is being sent.
  std::optional<protocol::Spans> Fenced(SendFenced fenced);

 private:
  StallWatch stalls_;
  protocol::Spans spans_;
  std::map<int64_t, TimePoint> offered_;  ///< Numbers of which nothing has begun.
  /// Destination and part of what is being sent; stalled seconds when it began.
  std::map<std::pair<uint32_t, uint32_t>, double> running_;
};

}  // namespace weightcast::worker
