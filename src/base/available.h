#pragma once

#include <cstdint>

namespace weightcast {

/// Bytes that this process could still allocate: the kernel's estimate for the host, or what is left
/// below the memory limit of its control group (v1 or v2) or of its address space (`ulimit -v`) where that is
/// less. An estimate; others allocate too. The largest number there is when nothing can be read.
uint64_t AvailableMemory();

/// What a task may take: `wanted`, or half of what is available if that is 0.
uint64_t MemoryToUse(uint64_t wanted);

}  // namespace weightcast
