#pragma once

#include <cstddef>
#include <functional>
#include <thread>

#include "weightcast/status.h"

namespace weightcast {

/// A thread called `name` (at most 15 characters, for debuggers and `top -H`) that runs `body`. kExhausted
/// where the system gives none: the limit of processes (ulimit -u), of a container, or memory.
Result<std::thread> StartThread(const char* name, std::function<void()> body);
/// Ok if this process may start so many more threads. Asked at a start, so that a limit too low shows there.
Status CheckThreads(size_t wanted);

/// Calls task(i) for 0..count-1 on up to `threads` threads, of which one is the caller's; where the system
/// gives fewer, these do it all. Returns when all are over.
void ForEachInParallel(size_t count, size_t threads, const std::function<void(size_t)>& task);

}  // namespace weightcast
