#pragma once

#include <compare>
#include <cstdint>

namespace weightcast {

/// A target's permission for one peer to write to it: stands on the wire for (update id, buffer).
/// Slot 0 with id 0 is the standing grant, valid for regions with Access::kReadWrite alone.
struct GrantName {
  uint32_t slot = 0;  ///< 1 .. kGrantSlots - 1 for real grants; per connection and direction.
  uint64_t id = 0;    ///< Never used twice by one target.
  friend auto operator<=>(const GrantName&, const GrantName&) = default;
};
inline constexpr uint32_t kGrantSlots = 64;

}  // namespace weightcast
