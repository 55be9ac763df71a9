#include "endpoint/spin.h"

#include <sched.h>

#include <algorithm>

namespace weightcast::endpoint {
namespace {

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

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
    Pause();
  }
  return true;
}

}  // namespace weightcast::endpoint
