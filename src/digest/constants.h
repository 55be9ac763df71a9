#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/digest_math.h"

/// The fixed numbers of the definition (docs/digest.md), and the field's arithmetic.
namespace weightcast::digest {

using kernels::AddInField;
using kernels::Int128;
using kernels::kPrime;
using kernels::MultiplyInField;
using kernels::Random;
using kernels::RandomFactor;
using kernels::SignedToField;
using kernels::ToField;
using kernels::UInt128;

inline constexpr size_t kBlockBytes = kernels::kDigestBlock;
inline constexpr size_t kBlockLanes = kBlockBytes / 2;
inline constexpr size_t kDots = kernels::kDigestDots;
inline constexpr size_t kTableStep = kernels::kDigestStep;
inline constexpr int kMaxTableValue = kernels::kDigestMost;

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
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int16_t>(kernels::DigestTableValue(i));
  return table;
}

}  // namespace weightcast::digest
