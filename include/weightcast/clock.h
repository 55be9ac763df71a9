#pragma once

#include <chrono>

namespace weightcast {

/// Monotonic; never compared between hosts.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = std::chrono::nanoseconds;

// Whatever waits takes the moment at which it stops waiting, a TimePoint: In(5), In(settings.lease), kNever.
// One that has passed (Clock::now()) only looks. Durations are for settings and for what was measured.

/// Further off than any other deadline; leases may be added to it.
inline constexpr TimePoint kNever{std::chrono::hours(24 * 365 * 200)};

inline double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
inline Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

/// `wait` from now; kNever where that is later.
inline TimePoint In(Duration wait) {
  const TimePoint now = Clock::now();
  return wait < kNever - now ? now + wait : kNever;
}
/// So many seconds from now; at once for negative ones, kNever for infinity and what is not a number.
inline TimePoint In(double seconds) {
  constexpr double kLongest = 1e9;  // 30 years.
  if (!(seconds < kLongest)) return kNever;
  return In(FromSeconds(seconds > 0 ? seconds : 0));
}

}  // namespace weightcast
