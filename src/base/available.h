#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weightcast {

/// A control group that holds this process. A limit of each group above holds as well.
struct ControlGroup {
  std::string controllers;  ///< "cpu,memory" of v1; empty for v2's, which has all.
  std::string path;         ///< Below the mount; empty for its root, which inside a container is our own.
};
/// Each group before those above it, by /proc/self/cgroup below `root`. Inside a container a path may not be
/// visible.
std::vector<ControlGroup> ControlGroupsOf(const std::string& root);

/// Bytes that this process could still allocate: the kernel's estimate for the host, or what is left
/// below the memory limit of its control group (v1 or v2) or of its address space (`ulimit -v`) where that is
/// less. An estimate; others allocate too. The largest number there is when nothing can be read.
uint64_t AvailableMemory();

/// What a task may take: `wanted`, or half of what is available if that is 0.
uint64_t MemoryToUse(uint64_t wanted);

}  // namespace weightcast
