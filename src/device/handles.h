#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/fd.h"
#include "device/describe.h"
#include "memory/memory.h"

namespace weightcast::device {

/// Random, once per process: which process an allocation's identity belongs to. Never 0.
uint64_t ProcessName();

/// An allocation as its owner tells of it to a peer: everything but the handles.
struct AllocationName {
  uint64_t process = 0;   ///< The owner's ProcessName().
  uint64_t identity = 0;  ///< There.
  DeviceUuid device{};
  Exportable exportable = Exportable::kNo;
  std::byte* address = nullptr;   ///< In the owner's process, and used only there.
  std::vector<uint64_t> lengths;  ///< Of its blocks, in order.
};
AllocationName NameOf(const DeviceMemory& memory);

/// What a process opens a block with. Descriptors travel beside the message, the rest inside.
struct LegacyHandle {
  std::array<std::byte, 64> bytes{};
};
struct FabricHandle {
  std::array<std::byte, 64> bytes{};
};
using Handle = std::variant<LegacyHandle, UniqueFd, FabricHandle>;

/// So many descriptors fit into one message.
inline constexpr size_t kHandlesPerMessage = 32;

}  // namespace weightcast::device
