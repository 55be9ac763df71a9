#pragma once

#include <cstddef>
#include <cstdint>

#include "weightcast/tensor.h"

namespace weightcast::worker {

/// A matrix in host memory, of F32, F16 or BF16; the elements of a row lie side by side.
struct HostMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  ///< Bytes from row to row.
};

/// Where what becomes of a matrix goes: rows of F8_E4M3, rows of F32 scales. Strides in bytes.
struct Fp8Matrix {
  std::byte* values = nullptr;  ///< Null: not wanted.
  int64_t values_stride = 0;
  std::byte* scales = nullptr;  ///< Null: not wanted.
  int64_t scales_stride = 0;
};

/// Quantises blocks of 128 x 128, the first at the first element; those at the ends may be smaller. The bytes
/// are those of the kernels quantise_blocks.
void QuantiseBlocks(const HostMatrix& source, const Fp8Matrix& target);

}  // namespace weightcast::worker
