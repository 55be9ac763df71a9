#pragma once

#include <cstdint>

namespace weightcast {

/// Begins to count; harmless when repeated. Any thread.
void CountForks();
/// How often this process is a child of a fork() since. Costs one load: getpid() would be a system call.
uint32_t ForkCount();

}  // namespace weightcast
