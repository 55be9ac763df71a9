#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "memory/memory.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

inline constexpr size_t kMaxTransports = 16;
inline constexpr size_t kMaxTransportName = 32;
inline constexpr size_t kMaxDescriptor = 16 << 10;
inline constexpr size_t kMaxKey = 2048;

/// What one transport's Import needs.
struct RegionKey {
  std::string transport;
  std::string key;
  friend bool operator==(const RegionKey&, const RegionKey&) = default;
};

/// A region as told to peers: docs/wire.md, "region descriptor".
struct RegionDescriptor {
  RegionName name;
  Access access = Access::kLocal;
  MemoryKind kind = MemoryKind::kHost;
  DeviceUuid device{};      ///< All zero for host memory.
  uint64_t registered = 0;  ///< Bytes of the registration that `name` names.
  uint64_t offset = 0;      ///< Of this region in it.
  uint64_t length = 0;      ///< Of this region.
  std::vector<RegionKey> keys;
  friend bool operator==(const RegionDescriptor&, const RegionDescriptor&) = default;
};

std::string EncodeDescriptor(const RegionDescriptor& descriptor);
/// kProtocol when malformed: what it gives is within the limits and inside itself.
Result<RegionDescriptor> ParseDescriptor(std::string_view bytes);

}  // namespace weightcast::endpoint
