#pragma once

#include <cstdint>
#include <optional>

#include "transport/types.h"

namespace weightcast::transport::verbs {

/// The number by which a target's open grant is known on the wire; 0 is the standing grant.
using Lease = uint16_t;
inline constexpr uint32_t kLeases = 1U << 11;

/// A whole signal in the 32 bits of an immediate: chunk 0 of 1, without a checksum. Top bit 0, lease,
/// transfer.
struct Immediate {
  Lease lease = 0;
  uint32_t transfer = 0;
};
inline constexpr uint32_t kMaxImmediateTransfer = (1U << 20) - 1;

constexpr bool FitsImmediate(const Signal& signal) {
  return signal.chunk == 0 && signal.chunks == 1 && signal.checksum == 0 &&
         signal.transfer <= kMaxImmediateTransfer;
}
constexpr uint32_t Encode(Immediate immediate) {
  return static_cast<uint32_t>(immediate.lease) << 20 | immediate.transfer;
}
/// nullopt: not one of ours.
constexpr std::optional<Immediate> ParseImmediate(uint32_t bits) {
  if (bits >> 31 != 0) return std::nullopt;
  return Immediate{.lease = static_cast<Lease>(bits >> 20), .transfer = bits & kMaxImmediateTransfer};
}

}  // namespace weightcast::transport::verbs
