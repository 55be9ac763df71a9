#include "worker/quantise.h"

#include <algorithm>
#include <cstring>

#include "kernels/convert.h"
#include "kernels/quantise.h"

namespace weightcast::worker {
namespace {

constexpr int64_t kBlock = kernels::kBlock;

/// A part of a matrix that is a block.
struct Block {
  int64_t row;
  int64_t column;
  int64_t rows;
  int64_t columns;
};

/// One row of a block, in F32; behind its end zeros, which change no amax. All loops are over a whole row of
/// fixed length and plain, so that the compiler may use vector instructions.
struct BlockRow {
  float value[kBlock];
};

template <typename From>
BlockRow Load(const HostMatrix& source, const Block& block, int64_t row) {
  using Bits = typename From::Bits;
  Bits bits[kBlock] = {};
  const auto* from = source.data + (block.row + row) * source.stride;
  std::memcpy(bits, from + block.column * int64_t{sizeof(Bits)},
              static_cast<size_t>(block.columns) * sizeof(Bits));
  BlockRow out;
  for (int64_t i = 0; i < kBlock; ++i) out.value[i] = From::Widen(bits[i]);
  return out;
}

template <typename From>
uint32_t AmaxOf(const HostMatrix& source, const Block& block) {
  uint32_t amax[kBlock] = {};
  for (int64_t r = 0; r < block.rows; ++r) {
    const BlockRow row = Load<From>(source, block, r);
    for (int64_t i = 0; i < kBlock; ++i)
      amax[i] = kernels::Larger(amax[i], kernels::MagnitudeOf(row.value[i]));
  }
  return *std::max_element(amax, amax + kBlock);
}

template <typename From>
void WriteValues(const HostMatrix& source, const Block& block, float inverse, const Fp8Matrix& target) {
  for (int64_t r = 0; r < block.rows; ++r) {
    const BlockRow row = Load<From>(source, block, r);
    uint8_t values[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) values[i] = kernels::ToE4m3(row.value[i] * inverse);
    std::memcpy(target.values + (block.row + r) * target.values_stride + block.column, values,
                static_cast<size_t>(block.columns));
  }
}

template <typename From>
void Quantise(const HostMatrix& source, const Fp8Matrix& target) {
  for (int64_t row = 0; row < source.rows; row += kBlock) {
    for (int64_t column = 0; column < source.columns; column += kBlock) {
      const Block block{row, column, std::min(kBlock, source.rows - row),
                        std::min(kBlock, source.columns - column)};
      const kernels::Scale scale(AmaxOf<From>(source, block));
      if (target.values != nullptr) WriteValues<From>(source, block, scale.inverse, target);
      if (target.scales == nullptr) continue;
      std::byte* at = target.scales + row / kBlock * target.scales_stride;
      std::memcpy(at + column / kBlock * static_cast<int64_t>(sizeof scale.scale), &scale.scale,
                  sizeof scale.scale);
    }
  }
}

}  // namespace

void QuantiseBlocks(const HostMatrix& source, const Fp8Matrix& target) {
  if (source.dtype == DType::kF32) return Quantise<kernels::F32>(source, target);
  if (source.dtype == DType::kF16) return Quantise<kernels::F16>(source, target);
  Quantise<kernels::BF16>(source, target);
}

}  // namespace weightcast::worker
