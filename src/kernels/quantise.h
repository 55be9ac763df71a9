#pragma once

#include "kernels/convert.h"
#include "kernels/lane.h"

/// FP8 (E4M3) with a scale for each block of 128 x 128 elements, or for a whole tensor:
///   amax = max(|x|, 2^-100), q = e4m3(x * (448 / amax)), scale = amax / 448
/// in F32, each step rounded to nearest, ties to even. A NaN in the block makes its scale and all its q NaN;
/// an infinity makes scale infinite, itself NaN and the others zero.
namespace weightcast::kernels {

inline constexpr uint32_t kBlock = 128;               ///< Rows and columns.
inline constexpr uint32_t kQuantiseThreads = 512;     ///< The launch must have just as many.
inline constexpr uint32_t kSmallestAmax = 27U << 23;  ///< 2^-100: 448 / amax stays finite.
inline constexpr float kLargestE4m3 = 448.0F;

/// Rounds to nearest, ties to even; what is too large becomes 448, a NaN 0x7f.
inline uint8_t ToE4m3(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > kF32Infinity) return 0x7f;
  // As ToF16: the bias moves from 127 to 7 and 20 bits go; subnormal steps are 2^-9.
  const uint32_t normal = (magnitude - (120U << 23) + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
  const float sum = __builtin_bit_cast(float, magnitude) + 16384.0F;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, sum) - 0x46800000;
  constexpr uint32_t kSmallestNormal = 121U << 23;  // 2^-6
  uint32_t result = magnitude < kSmallestNormal ? subnormal : normal;
  if (magnitude >= 0x43e00000 || result > 0x7e) result = 0x7e;  // 448
  return static_cast<uint8_t>((bits >> 24 & 0x80) | result);
}

/// Four at a time: one instruction for two, where the GPU has it.
inline uint32_t ToE4m3x4(float a, float b, float c, float d) {
#if defined(__NVPTX__) && __CUDA_ARCH__ >= 900
  uint16_t low;
  uint16_t high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return uint32_t{high} << 16 | low;
#else
  return uint32_t{ToE4m3(d)} << 24 | uint32_t{ToE4m3(c)} << 16 | uint32_t{ToE4m3(b)} << 8 | ToE4m3(a);
#endif
}

/// A quotient that is rounded to nearest.
inline float Divide(float a, float b) {
#ifdef __NVPTX__
  return __nvvm_div_rn_f(a, b);
#else
  return a / b;
#endif
}

/// |value| as an integer that grows with it; a NaN is above all.
inline uint32_t MagnitudeOf(float value) { return __builtin_bit_cast(uint32_t, value) & 0x7fffffff; }
inline uint32_t Larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/// What becomes of a block whose largest magnitude is `amax`.
struct Scale {
  explicit Scale(uint32_t amax) {
    const auto value = __builtin_bit_cast(float, Larger(amax, kSmallestAmax));
    inverse = Divide(kLargestE4m3, value);
    scale = Divide(value, kLargestE4m3);
    // Processors differ in the payload of the NaN that they make.
    if (amax > kF32Infinity) scale = __builtin_bit_cast(float, 0x7fc00000);
  }
  float inverse;
  float scale;
};

/// Parameters of quantise_blocks_*: a matrix, dense within its rows. Scales are F32, one for each block. A
/// target or scales of 0 are not written.
struct QuantiseBlocksParameters {
  uint64_t source;
  uint64_t target;
  uint64_t scales;
  uint64_t rows;
  uint64_t columns;
  uint64_t source_stride;  ///< Bytes from row to row.
  uint64_t target_stride;
  uint64_t scale_stride;
};

/// One of the matrix's blocks.
struct Tile {
  Tile(const QuantiseBlocksParameters& p, uint64_t number) {
    const uint64_t across = (p.columns + kBlock - 1) / kBlock;
    row = number / across * kBlock;
    column = number % across * kBlock;
    scale = p.scales + row / kBlock * p.scale_stride + column / kBlock * 4;
  }
  static uint64_t CountOf(const QuantiseBlocksParameters& p) {
    return ((p.rows + kBlock - 1) / kBlock) * ((p.columns + kBlock - 1) / kBlock);
  }
  uint64_t row;
  uint64_t column;
  uint64_t scale;
};

/// A thread's four columns in each of eight rows of a tile. A warp reads one row at a time. Kept in registers
/// where rows can be read and written four elements at a time (kWide), read twice where not.
template <typename From, bool kWide>
class TilePart {
 public:
  WC_INLINE TilePart(const QuantiseBlocksParameters& p, const Tile& tile, uint32_t thread)
      : p_(p), row_(tile.row + thread / kWarp), column_(tile.column + thread % kWarp * 4) {
    if constexpr (kWide) {
      WC_UNROLL for (uint32_t r = 0; r < kRows; ++r) four_[r] = Inside(r) ? LoadFour(r) : Four{};
    }
  }

  [[nodiscard]] WC_INLINE uint32_t Amax() const {
    uint32_t amax = 0;
    if constexpr (kWide) {
      WC_UNROLL for (uint32_t r = 0; r < kRows; ++r) amax = Larger(amax, AmaxOf(four_[r]));
    } else {
      for (uint32_t r = 0; r < kRows; ++r) amax = Larger(amax, AmaxOf(LoadSingly(r)));
    }
    return amax;
  }

  WC_INLINE void Write(float inverse) const {
    if constexpr (kWide) {
      WC_UNROLL for (uint32_t r = 0; r < kRows; ++r) if (Inside(r))
          Store<uint32_t>(Target(r), Quantised(four_[r], inverse));
    } else {
      for (uint32_t r = 0; r < kRows; ++r) {
        const uint32_t four = Quantised(LoadSingly(r), inverse);
        for (uint32_t i = 0; i < 4 && Inside(r) && column_ + i < p_.columns; ++i)
          Store<uint8_t>(Target(r) + i, static_cast<uint8_t>(four >> 8 * i));
      }
    }
  }

 private:
  using Bits = typename From::Bits;
  static constexpr uint32_t kApart = kQuantiseThreads / kWarp;  ///< Rows between two of a thread's.
  static constexpr uint32_t kRows = kBlock / kApart;
  struct Four {
    float value[4];
  };

  [[nodiscard]] WC_INLINE bool Inside(uint32_t r) const {
    return row_ + r * kApart < p_.rows && column_ < p_.columns;
  }
  [[nodiscard]] WC_INLINE uint64_t Source(uint32_t r) const {
    return p_.source + (row_ + r * kApart) * p_.source_stride + column_ * sizeof(Bits);
  }
  [[nodiscard]] WC_INLINE uint64_t Target(uint32_t r) const {
    return p_.target + (row_ + r * kApart) * p_.target_stride + column_;
  }

  [[nodiscard]] WC_INLINE Four LoadFour(uint32_t r) const {
    Four four;
    if constexpr (sizeof(Bits) == 4) {
      const auto words = Load<Vector>(Source(r));
      WC_UNROLL for (int i = 0; i < 4; ++i) four.value[i] = From::Widen(words[i]);
    } else {
      const auto words = Load<uint64_t>(Source(r));
      WC_UNROLL for (int i = 0; i < 4; ++i) four.value[i] = From::Widen(static_cast<Bits>(words >> 16 * i));
    }
    return four;
  }
  [[nodiscard]] WC_INLINE Four LoadSingly(uint32_t r) const {
    Four four{};
    WC_UNROLL for (uint32_t i = 0; i < 4; ++i) if (Inside(r) && column_ + i < p_.columns) four.value[i] =
        From::Widen(Load<Bits>(Source(r) + i * sizeof(Bits)));
    return four;
  }
  static WC_INLINE uint32_t AmaxOf(const Four& four) {
    uint32_t amax = 0;
    WC_UNROLL for (int i = 0; i < 4; ++i) amax = Larger(amax, MagnitudeOf(four.value[i]));
    return amax;
  }
  static WC_INLINE uint32_t Quantised(const Four& four, float inverse) {
    const float* v = four.value;
    return ToE4m3x4(v[0] * inverse, v[1] * inverse, v[2] * inverse, v[3] * inverse);
  }

  const QuantiseBlocksParameters& p_;
  uint64_t row_;
  uint64_t column_;
  Four four_[kWide ? kRows : 1];
};

/// Whether all rows can be read and written four elements at a time.
template <typename From>
bool IsWide(const QuantiseBlocksParameters& p) {
  return (p.source | p.source_stride) % (4 * sizeof(typename From::Bits)) == 0 &&
         (p.target | p.target_stride | p.columns) % 4 == 0;
}

/// Parameters of amax_*: raises the 4 bytes at `amax`, which begin at 0, to the largest magnitude.
struct AmaxParameters {
  uint64_t source;
  uint64_t count;
  uint64_t amax;
};

/// Parameters of quantise_*: `count` dense elements with the amax that amax_* found; writes the scale.
struct QuantiseParameters {
  uint64_t source;
  uint64_t target;
  uint64_t count;
  uint64_t amax;
  uint64_t scale;
};

/// The largest magnitude of this lane's elements.
template <typename From>
WC_INLINE uint32_t LaneAmax(Lane lane, const AmaxParameters& p) {
  using Bits = typename From::Bits;
  const uint64_t groups = (p.source & 15) == 0 ? p.count / 8 : 0;
  uint32_t amax = 0;
  for (uint64_t i = lane.index(); i < groups; i += lane.count()) {
    const auto in = Group<Bits>::LoadFrom(p.source + 8 * i * sizeof(Bits));
    WC_UNROLL for (int e = 0; e < 8; ++e) amax = Larger(amax, MagnitudeOf(From::Widen(in.Get(e))));
  }
  for (uint64_t i = 8 * groups + lane.index(); i < p.count; i += lane.count())
    amax = Larger(amax, MagnitudeOf(From::Widen(Load<Bits>(p.source + i * sizeof(Bits)))));
  return amax;
}

template <typename From>
WC_INLINE void QuantiseDense(Lane lane, const QuantiseParameters& p) {
  using Bits = typename From::Bits;
  const Scale scale(Load<uint32_t>(p.amax));
  if (lane.index() == 0) Store<float>(p.scale, scale.scale);
  const uint64_t groups = (p.source & 15) == 0 && (p.target & 7) == 0 ? p.count / 8 : 0;
  for (uint64_t i = lane.index(); i < groups; i += lane.count()) {
    const auto in = Group<Bits>::LoadFrom(p.source + 8 * i * sizeof(Bits));
    float x[8];
    WC_UNROLL for (int e = 0; e < 8; ++e) x[e] = From::Widen(in.Get(e)) * scale.inverse;
    const uint64_t high = ToE4m3x4(x[4], x[5], x[6], x[7]);
    Store<uint64_t>(p.target + 8 * i, high << 32 | ToE4m3x4(x[0], x[1], x[2], x[3]));
  }
  for (uint64_t i = 8 * groups + lane.index(); i < p.count; i += lane.count()) {
    const float x = From::Widen(Load<Bits>(p.source + i * sizeof(Bits))) * scale.inverse;
    Store<uint8_t>(p.target + i, static_cast<uint8_t>(ToE4m3x4(x, 0, 0, 0)));
  }
}

}  // namespace weightcast::kernels
