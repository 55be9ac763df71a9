#pragma once

#include <cstdint>

/// Arithmetic modulo the prime 2^61 - 1. Elements are 0 to kPrime - 1.
namespace weightcast::digest {

__extension__ using Int128 = __int128;
__extension__ using UInt128 = unsigned __int128;

inline constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

constexpr uint64_t AddInField(uint64_t a, uint64_t b) {
  const uint64_t sum = a + b;
  return sum >= kPrime ? sum - kPrime : sum;
}

/// `value` is below 2^127.
constexpr uint64_t ToField(UInt128 value) {
  // 2^61 is 1 in the field.
  const UInt128 once = (value & kPrime) + (value >> 61);
  const auto twice = static_cast<uint64_t>((once & kPrime) + (once >> 61));
  return twice >= kPrime ? twice - kPrime : twice;
}

/// `value` is between -2^125 and 2^125. No branch: signs are random.
constexpr uint64_t SignedToField(Int128 value) {
  constexpr Int128 kOffset = Int128{kPrime} << 64;
  return ToField(static_cast<UInt128>(value + kOffset));
}

constexpr uint64_t MultiplyInField(uint64_t a, uint64_t b) { return ToField(UInt128{a} * b); }

}  // namespace weightcast::digest
