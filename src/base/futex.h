#pragma once

#include <atomic>
#include <cstdint>

#include "weightcast/clock.h"

namespace weightcast {

/// Sleeps while `word` is `expected`, at most until `deadline`. Returns early on signals and for no reason:
/// look again.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, TimePoint deadline);
/// Wakes all threads of this process that sleep on `word`.
void FutexWakeAll(std::atomic<uint32_t>& word);

}  // namespace weightcast
