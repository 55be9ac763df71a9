#include "endpoint/flag.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace weightcast::endpoint {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

/// Returns early on signals and spurious wake-ups.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, TimePoint deadline) {
  // steady_clock is CLOCK_MONOTONIC, which FUTEX_WAIT_BITSET takes as absolute time.
  const auto since_boot = deadline.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
  const timespec until{
      .tv_sec = seconds.count(),
      .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(since_boot - seconds).count()};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET_PRIVATE, expected, &until, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

void Flag::Set(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  // Sequentially consistent on both sides: either the sleeper sees the value or we see the sleeper.
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
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
