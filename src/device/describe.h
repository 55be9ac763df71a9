#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "device/gpus.h"
#include "memory/memory.h"
#include "weightcast/memory.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// How another process can map an allocation.
enum class Exportable : uint8_t {
  kNo,           ///< Not at all: its bytes are staged through host memory.
  kLegacy,       ///< One handle of 64 bytes: memory of cuMemAlloc.
  kDescriptors,  ///< A file descriptor for each mapping.
  kFabric,       ///< A fabric handle of 64 bytes for each mapping.
};

/// One mapping of the driver: a whole allocation of cuMemAlloc, or a page of an expandable segment.
struct Block {
  std::byte* address = nullptr;
  size_t length = 0;
  uint64_t identity = 0;  ///< The driver's buffer id: never used again in this process.
};

/// Device memory, as the driver knows it.
struct DeviceMemory {
  DescribedMemory memory;  ///< Its allocation is the run of `blocks`.
  Exportable exportable = Exportable::kNo;
  std::string_view why_not;   ///< kNo: the reason, for a person.
  std::vector<Block> blocks;  ///< Without gaps; they hold all bytes. At least one.
};

/// Finds out what `memory`, which the caller says is of `context`'s device, is. kInvalidArgument where the
/// driver contradicts: host memory, another device, managed memory, bytes beyond what is allocated.
Result<DeviceMemory> Describe(const Context& context, const Memory& memory);

/// Identity of the allocation, or run of mappings, that holds `bytes` now: 0.3 us for each mapping. Other
/// than that of a registration: the memory was freed, and is another one at the same address.
Result<uint64_t> IdentityOf(const Context& context, std::span<const std::byte> bytes);

/// What `bytes` of the caller's are, who does not say: host or device memory. Host memory that the driver
/// does not know is host memory. kInvalidArgument for managed memory.
Result<Memory> Recognise(const Gpus& gpus, std::span<std::byte> bytes);

}  // namespace weightcast::device
