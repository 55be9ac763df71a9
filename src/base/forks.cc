#include "base/forks.h"

#include <pthread.h>

#include <atomic>

namespace weightcast {
namespace {
std::atomic<uint32_t> forks{0};
}

void CountForks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  (void)registered;
}

uint32_t ForkCount() { return forks.load(std::memory_order_relaxed); }

}  // namespace weightcast
