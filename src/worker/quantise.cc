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

template <typename From>
float At(const std::byte* row, int64_t column) {
  typename From::Bits bits;
  std::memcpy(&bits, row + column * static_cast<int64_t>(sizeof bits), sizeof bits);
  return From::Widen(bits);
}

// The loops are plain so that the compiler may use vector instructions.

template <typename From>
uint32_t AmaxOf(const HostMatrix& source, const Block& block) {
  uint32_t amax = 0;
  for (int64_t r = 0; r < block.rows; ++r) {
    const std::byte* row = source.data + (block.row + r) * source.stride;
    for (int64_t c = 0; c < block.columns; ++c)
      amax = kernels::Larger(amax, kernels::MagnitudeOf(At<From>(row, block.column + c)));
  }
  return amax;
}

template <typename From>
void WriteValues(const HostMatrix& source, const Block& block, float inverse, const Fp8Matrix& target) {
  for (int64_t r = 0; r < block.rows; ++r) {
    const std::byte* row = source.data + (block.row + r) * source.stride;
    std::byte* out = target.values + (block.row + r) * target.values_stride + block.column;
    for (int64_t c = 0; c < block.columns; ++c)
      out[c] = std::byte{kernels::ToE4m3(At<From>(row, block.column + c) * inverse)};
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
