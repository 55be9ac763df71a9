#include "endpoint/transfers/progress_lock.h"

#include <sched.h>

namespace weightcast::endpoint {
namespace {

/// How often a caller, or the thread that yielded to it, yields the core before it goes on without the other.
constexpr int kYields = 16;

}  // namespace

bool ProgressLock::TryTakeAsThread() {
  if (!TryTake()) return false;
  by_thread_.store(true, std::memory_order_relaxed);
  return true;
}

bool ProgressLock::TakeFromThread() {
  bool taken = false;
  wanted_.fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; i < kYields && !taken && by_thread(); ++i) {
    sched_yield();
    taken = TryTake();
  }
  wanted_.fetch_sub(1, std::memory_order_relaxed);
  return taken;
}

void ProgressLock::YieldToCaller() {
  Release();
  for (int i = 0; i < kYields && wanted(); ++i) {
    if (held_.load(std::memory_order_relaxed)) return;
    sched_yield();
  }
}

}  // namespace weightcast::endpoint
