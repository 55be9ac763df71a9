#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "memory/memory.h"
#include "weightcast/memory.h"

namespace weightcast {

/// Where some bytes lie inside a buffer made by Allocate.
struct SharedRange {
  int fd = -1;                           ///< The buffer's memfd, open while `buffer` is held.
  uint64_t offset = 0;                   ///< Of the first byte, in the descriptor.
  Allocation allocation;                 ///< The whole buffer.
  std::shared_ptr<SharedBuffer> buffer;  ///< Keeps it from being freed.
};

/// The live Allocate'd buffer that wholly contains `bytes`; nullopt for any other memory. Thread safe.
std::optional<SharedRange> FindShared(std::span<const std::byte> bytes);

/// A number that names no other allocation of this process. Thread safe.
uint64_t NextAllocationIdentity();

}  // namespace weightcast
