#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>

#include "weightcast/identity.h"
#include "weightcast/memory.h"
#include "weightcast/status.h"

namespace weightcast {

/// A device by its identity: ordinals differ between processes. All zero for host memory.
using DeviceUuid = std::array<std::byte, 16>;

/// The allocation that some memory lies in. `identity` is never used again: memory freed and
/// allocated again at the same address is new memory.
struct Allocation {
  std::byte* base = nullptr;
  size_t length = 0;
  uint64_t identity = 0;
};

/// Memory that a transport is asked to register: a public Memory, and what was found out about it. Not owned.
struct DescribedMemory {
  MemoryKind kind = MemoryKind::kHost;
  DeviceUuid device{};
  int ordinal = -1;  ///< Of the device in this process; -1: host memory.
  std::byte* address = nullptr;
  size_t length = 0;
  Allocation allocation;
  int fd = -1;             ///< A descriptor that maps it in another process (memfd, dma-buf), or -1.
  uint64_t fd_offset = 0;  ///< Where `address` lies in that descriptor.
};

/// Refuses what contradicts itself: a device that does not fit the kind; a null pointer; bytes beyond the
/// last address. kInvalidArgument, with the reason. What the driver knows of device memory is another check.
Status CheckMemory(const Memory& memory);

/// Whether `access` lets a peer write, under a grant that was made for it or without one, and read.
constexpr bool PeersWrite(Access access, bool granted) {
  return access == Access::kReadWrite || (granted && access == Access::kGranted);
}
constexpr bool PeersRead(Access access) { return access == Access::kReadWrite || access == Access::kRead; }

/// Names registered memory among all endpoints. Ids are small and reused; the generation is not.
struct RegionName {
  Incarnation owner = 0;
  uint32_t id = 0;
  uint32_t generation = 0;  ///< Never 0 for a live region.
  friend auto operator<=>(const RegionName&, const RegionName&) = default;
};

}  // namespace weightcast
