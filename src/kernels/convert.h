#pragma once

#include "kernels/lane.h"

/// Casts between F32, F16 and BF16. They round to nearest, ties to even; what is too large becomes
/// infinite; a NaN stays a NaN, quiet, with its sign and upper payload. Integer arithmetic, except for two
/// steps that every processor rounds alike, so that all of them give the same bits.
namespace weightcast::kernels {

inline constexpr uint32_t kF32Infinity = 0x7f800000;

inline uint16_t ToBf16(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > kF32Infinity ? quiet : rounded);
}

inline float FromBf16(uint16_t bits) { return __builtin_bit_cast(float, uint32_t{bits} << 16); }

inline uint16_t ToF16(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Normal: the exponent's bias moves from 127 to 15 and the fraction loses 13 bits; a carry out of the
  // fraction raises the exponent, up to infinity.
  const uint32_t normal = (magnitude - (112U << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Subnormal: adding 1/2 lets the processor round to the last of F16's subnormal steps, 2^-24.
  const float half = __builtin_bit_cast(float, magnitude) + 0.5F;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, half) - 0x3f000000;
  constexpr uint32_t kSmallestNormal = 113U << 23;  // 2^-14
  constexpr uint32_t kTooLarge = 143U << 23;        // 2^16
  uint32_t result = magnitude < kSmallestNormal ? subnormal : normal;
  if (magnitude >= kTooLarge) result = 0x7c00;
  if (magnitude > kF32Infinity) result = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  return static_cast<uint16_t>(sign | result);
}

inline float FromF16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t magnitude = bits & 0x7fffU;
  // Shifted into place the exponent lacks 112; a multiplication by 2^112 is exact, for subnormals too.
  const float scaled =
      __builtin_bit_cast(float, magnitude << 13) * __builtin_bit_cast(float, (127U + 112U) << 23);
  auto result = __builtin_bit_cast(uint32_t, scaled);
  if (magnitude >= 0x7c00) result = kF32Infinity | (magnitude & 0x3ff) << 13;
  if (magnitude > 0x7c00) result |= 0x400000;
  return __builtin_bit_cast(float, sign | result);
}

/// The three formats: how an element is stored, and its way to and from a float.
struct F32 {
  using Bits = uint32_t;
  static float Widen(Bits bits) { return __builtin_bit_cast(float, bits); }
  static Bits Narrow(float value) { return __builtin_bit_cast(uint32_t, value); }
};
struct F16 {
  using Bits = uint16_t;
  static float Widen(Bits bits) { return FromF16(bits); }
  static Bits Narrow(float value) { return ToF16(value); }
};
struct BF16 {
  using Bits = uint16_t;
  static float Widen(Bits bits) { return FromBf16(bits); }
  static Bits Narrow(float value) { return ToBf16(value); }
};

template <typename From, typename To>
typename To::Bits Cast(typename From::Bits bits) {
  return To::Narrow(From::Widen(bits));
}

/// Parameters of cast_*: `count` dense elements.
struct CastParameters {
  uint64_t source;
  uint64_t target;
  uint64_t count;
};

/// One element.
template <typename From, typename To>
void CastOne(uint64_t source, uint64_t target) {
  Store(target, Cast<From, To>(Load<typename From::Bits>(source)));
}

/// Eight elements; both addresses are multiples of 16.
template <typename From, typename To>
void CastGroup(uint64_t source, uint64_t target) {
  const auto in = Group<typename From::Bits>::LoadFrom(source);
  Group<typename To::Bits> out;
  WC_UNROLL for (int i = 0; i < out.kElements; ++i) out.Set(i, Cast<From, To>(in.Get(i)));
  out.StoreTo(target);
}

/// This lane's share of a dense cast.
template <typename From, typename To>
WC_INLINE void CastDense(Lane lane, const CastParameters& p) {
  constexpr uint64_t kFrom = sizeof(typename From::Bits);
  constexpr uint64_t kTo = sizeof(typename To::Bits);
  const uint64_t groups = ((p.source | p.target) & 15) == 0 ? p.count / 8 : 0;
  for (uint64_t i = lane.index(); i < groups; i += lane.count())
    CastGroup<From, To>(p.source + 8 * i * kFrom, p.target + 8 * i * kTo);
  for (uint64_t i = 8 * groups + lane.index(); i < p.count; i += lane.count())
    CastOne<From, To>(p.source + i * kFrom, p.target + i * kTo);
}

}  // namespace weightcast::kernels
