#pragma once

#include <atomic>
#include <cstdint>

#include "weightcast/clock.h"

namespace weightcast::endpoint {

/// A number that grows and that threads may sleep on. Is in shared ownership: the one who sets it still
/// touches it when the sleeper is already awake.
class Flag {
 public:
  [[nodiscard]] uint32_t value() const { return value_.load(std::memory_order_acquire); }
  /// Back to 0, when nobody else can look.
  void Reset() { value_.store(0, std::memory_order_relaxed); }
  /// Makes a system call only where somebody sleeps.
  void Set(uint32_t value);
  /// Sleeps while the value is below `value`; false at the deadline.
  bool SleepUntil(uint32_t value, TimePoint deadline);

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace weightcast::endpoint
