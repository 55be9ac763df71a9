#pragma once

#include <atomic>

#include "weightcast/clock.h"

namespace weightcast::endpoint {

/// Whether this machine has a core to spare for spinning: runnable threads (/proc/loadavg, all of the
/// machine, ourselves included) do not exceed the cores we may run on. Looked up at most every 20 ms.
/// Thread safe.
bool CoresToSpare();

/// How long one who drives progress goes on without anything moving. Spins for kBudget after the last
/// movement, yields once, then says to sleep.
class Spin {
 public:
  /// Long enough for an answer over loopback, short against a sleep and a wake-up of both sides.
  static constexpr Duration kBudget = std::chrono::microseconds(20);

  /// `moved`: something has moved since the last call. False: go to sleep.
  bool GoOn(bool moved);

 private:
  TimePoint last_{};
  bool spinning_ = false;
  bool yielded_ = false;
};

}  // namespace weightcast::endpoint
