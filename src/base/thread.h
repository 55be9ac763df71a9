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

}  // namespace weightcast
