#include "memory/registration_cache.h"

namespace weightcast {

DescribedMemory DescribeHostMemory(std::span<std::byte> bytes, const std::optional<SharedRange>& shared) {
  DescribedMemory memory;
  if (shared) {
    memory.allocation = shared->allocation;
    memory.fd = shared->fd;
  } else {
    memory.allocation = {bytes.data(), bytes.size(), NextAllocationIdentity()};
  }
  memory.address = memory.allocation.base;
  memory.length = memory.allocation.length;
  return memory;
}

}  // namespace weightcast
