#include "endpoint/transfers/spin.h"

#include <sched.h>

#include <algorithm>

#include "base/pause.h"

namespace weightcast::endpoint {

bool Spin::GoOn(bool moved) {
  const TimePoint now = Clock::now();
  const Duration still = now - last_;
  if (moved) {
    // Twice as long as this took, if that is worth it. What moves without a pause teaches nothing.
    if (still > kLongest) {
      patience_ = kShortest;
    } else if (still > patience_ / 2) {
      patience_ = std::min(2 * still, kLongest);
    }
    last_ = now;
    return true;
  }
  if (still >= patience_) return false;
  if (++looks_ % kLooksPerYield == 0) {
    sched_yield();
  } else {
    CpuPause();
  }
  return true;
}

}  // namespace weightcast::endpoint
