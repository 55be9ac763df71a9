#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "weightcast/status.h"

namespace weightcast {

/// What peers may do with a region.
enum class Access : uint8_t {
  kLocal,      ///< Nothing: a source or a landing place of our own operations.
  kGranted,    ///< Write only under an open grant; no read. For weights.
  kReadWrite,  ///< Read and write at any time while it is registered. For general point-to-point use.
  kRead,       ///< Read at any time while it is registered.
};

enum class MemoryKind : uint8_t {
  kHost,
  kDevice,  ///< Of a GPU: docs/gpu.md.
};

/// Memory of the caller's, which stays valid as long as it is registered.
struct Memory {
  MemoryKind kind = MemoryKind::kHost;
  int device = -1;               ///< kDevice: its ordinal in this process; kHost: -1.
  std::byte* address = nullptr;  ///< Of the first byte.
  uint64_t length = 0;           ///< Bytes.
  friend bool operator==(const Memory&, const Memory&) = default;
};
inline Memory HostMemory(std::span<std::byte> bytes) {
  return {.address = bytes.data(), .length = bytes.size()};
}

/// Host memory that other processes on this host can map: the fastest kind to send from and
/// to receive into. It is a memfd; its pages are reserved when it is made, so that full memory
/// is an error here and no SIGBUS later. Freed with the last handle; a registration holds its own.
class SharedBuffer {
 public:
  virtual ~SharedBuffer() = default;
  [[nodiscard]] virtual std::span<std::byte> bytes() = 0;
  [[nodiscard]] virtual int fd() const = 0;
};

/// Allocates `bytes` (> 0) of shared, zeroed, populated memory, page aligned.
/// Errors: kExhausted when memory, the cgroup or the descriptors do not suffice.
Result<std::shared_ptr<SharedBuffer>> Allocate(size_t bytes);

}  // namespace weightcast
