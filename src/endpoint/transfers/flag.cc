#include "endpoint/transfers/flag.h"

#include "base/futex.h"

namespace weightcast::endpoint {

void Flag::Set(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  // Sequentially consistent on both sides: either the sleeper sees the value or we see the sleeper.
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  FutexWakeAll(value_);
}

bool Flag::SleepUntil(uint32_t value, TimePoint deadline) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  uint32_t seen = value_.load(std::memory_order_seq_cst);
  while (seen < value && (Clock::now() < deadline)) {
    FutexWait(value_, seen, deadline);
    seen = value_.load(std::memory_order_seq_cst);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return seen >= value;
}

}  // namespace weightcast::endpoint
