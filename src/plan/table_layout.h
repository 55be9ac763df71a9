#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weightcast::plan {

// What encoder and decoder of the routing table agree on; docs/wire.md tells the whole.
inline constexpr std::string_view kTableMagic = "WCTABLE\n";
/// Magic, format version (uint32), checksum (uint64) of all that follows.
inline constexpr size_t kTableHeaderBytes = 8 + 4 + 8;

/// Bits of the byte that a route begins with.
inline constexpr uint8_t kRouteCasts = 1;          ///< Transform::kCast.
inline constexpr uint8_t kRouteIsWholeSource = 2;  ///< The box is the source shard's: not written.
inline constexpr uint8_t kRouteAtOrigin = 4;   ///< It begins where the destination shard does: not written.
inline constexpr uint8_t kRouteQuantises = 8;  ///< Transform::kQuantise.
inline constexpr uint8_t kRouteFlags = 15;

}  // namespace weightcast::plan
