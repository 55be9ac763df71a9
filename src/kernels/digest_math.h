#pragma once

#include "kernels/lane.h"

/// What the definition of the digest fixes (docs/digest.md), for src/digest and for the kernel `digest`: its
/// random numbers and the arithmetic modulo the prime 2^61 - 1. To change a number is to change every digest.
namespace weightcast::kernels {

inline constexpr uint32_t kDigestBlock = 8192;  ///< Bytes.
inline constexpr uint32_t kDigestDots = 5;      ///< Dot products of a block.
inline constexpr uint32_t kDigestStep =
    16;                                   ///< Lanes from where one dot product reads the table to the next.
inline constexpr int kDigestMost = 4095;  ///< Magnitude of the table's values.

/// Number `index` of the splitmix64 sequence that begins at `seed`.
constexpr uint64_t Random(uint64_t seed, uint64_t index) {
  uint64_t bits = seed + (index + 1) * 0x9E3779B97F4A7C15;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  return bits ^ (bits >> 31);
}

/// A nonzero element of the field, 1 to 2^60.
constexpr uint64_t RandomFactor(uint64_t seed, uint64_t index) { return 1 + (Random(seed, index) >> 4); }

/// Number `index` of the table that lanes are multiplied with.
constexpr int DigestTableValue(uint64_t index) {
  return static_cast<int>((Random(0, index) >> 32) * (2 * kDigestMost + 1) >> 32) - kDigestMost;
}

// --- The field. Elements are 0 to kPrime - 1.

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

}  // namespace weightcast::kernels
