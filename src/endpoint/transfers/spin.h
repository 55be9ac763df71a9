#pragma once

#include <cstdint>

#include "weightcast/clock.h"

namespace weightcast::endpoint {

/// How long those who drive progress go on without anything moving, learned from how long it took lately
/// until something moved again: where answers come soon, sleeping costs more than the wait; where they do
/// not, spinning is lost. The core goes to whoever else wants it every few looks. No load average, no count
/// of cores: a yield costs a fraction of a microsecond where nobody waits for the core, and where somebody
/// does the core is theirs.
class Spin {
 public:
  /// Without experience: enough for an answer over loopback, short against a sleep and a wake-up of both
  /// sides.
  static constexpr Duration kShortest = std::chrono::microseconds(20);
  /// Where what comes next takes longer, a sleep hardly matters.
  static constexpr Duration kLongest = std::chrono::microseconds(200);

  /// Somebody begins to drive, and has just posted something: as if it had moved.
  void Begin(TimePoint now) { last_ = now; }
  /// `moved`: something has moved since the last call. False: go to sleep.
  bool GoOn(bool moved);

 private:
  static constexpr uint32_t kLooksPerYield = 16;

  TimePoint last_{};
  Duration patience_ = kShortest;
  uint32_t looks_ = 0;
};

}  // namespace weightcast::endpoint
