#pragma once

#include "base/clock.h"

namespace weightcast::worker {

/// `seconds` from now; for ever (30 years) for what is larger, infinite or not a number.
inline TimePoint DeadlineIn(double seconds) {
  constexpr double kForEver = 1e9;
  if (seconds <= 0) return Clock::now();
  return Clock::now() + FromSeconds(seconds < kForEver ? seconds : kForEver);
}

}  // namespace weightcast::worker
