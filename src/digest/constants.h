#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

/// The fixed random numbers of the definition (docs/digest.md). To change one is to change every digest.
namespace weightcast::digest {

inline constexpr size_t kBlockBytes = 8192;
inline constexpr size_t kBlockLanes = kBlockBytes / 2;
inline constexpr size_t kDots = 5;        ///< Dot products of a block.
inline constexpr size_t kTableStep = 16;  ///< Lanes from where one dot product reads the table to the next.
inline constexpr int kMaxTableValue = 4095;

/// Number `index` of the splitmix64 sequence that begins at `seed`.
constexpr uint64_t Random(uint64_t seed, uint64_t index) {
  uint64_t bits = seed + (index + 1) * 0x9E3779B97F4A7C15;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  return bits ^ (bits >> 31);
}

/// A nonzero element of the field, 1 to 2^60.
constexpr uint64_t RandomFactor(uint64_t seed, uint64_t index) { return 1 + (Random(seed, index) >> 4); }

/// For each half of a digest: the factor of each dot product, then that of the count of bytes.
using Factors = std::array<std::array<uint64_t, kDots + 1>, 2>;

constexpr Factors MakeFactors() {
  Factors factors{};
  for (size_t i = 0; i < 2 * (kDots + 1); ++i) factors[i / (kDots + 1)][i % (kDots + 1)] = RandomFactor(1, i);
  return factors;
}
inline constexpr Factors kFactors = MakeFactors();

inline constexpr size_t kWidestStep = 32;  ///< Lanes of a step of the widest loop.
/// What the lanes of a block are multiplied with. Longer than the definition's by what a step of the widest
/// loop reads behind the last lane; those lanes are zero.
using Table = std::array<int16_t, kBlockLanes + (kDots - 1) * kTableStep + kWidestStep>;

constexpr Table MakeTable() {
  Table table{};
  for (size_t i = 0; i < table.size(); ++i) {
    const uint64_t scaled = (Random(0, i) >> 32) * (2 * kMaxTableValue + 1) >> 32;
    table[i] = static_cast<int16_t>(static_cast<int>(scaled) - kMaxTableValue);
  }
  return table;
}

}  // namespace weightcast::digest
