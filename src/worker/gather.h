#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weightcast/tensor.h"

namespace weightcast::worker {

/// A box inside a shard in the user's memory.
struct GatherSource {
  const std::byte* data = nullptr;  ///< First element of the shard.
  DType dtype = DType::kU8;
  Box shard;                     ///< In coordinates of the tensor.
  std::vector<int64_t> strides;  ///< In elements; one for each dimension.
  Box box;                       ///< The part of interest; inside the shard.
};

/// Row-major strides of a dense buffer.
std::vector<int64_t> DenseStrides(const Shape& size);
/// Whether elements of this size and stride lie one after another (dimensions of size 1 do not matter).
bool IsDense(const Shape& size, const std::vector<int64_t>& strides);

/// Copies elements [first, first + count) of the box, in row-major order, one after another to `target`,
/// as elements of `to`. Dtypes below one byte must be dense and begin on whole bytes.
void Gather(const GatherSource& source, int64_t first, int64_t count, DType to, std::byte* target);

/// How far from the shard's first element, in elements, lies what Gather reads (`count` > 0).
struct Reach {
  int64_t least = 0;
  int64_t greatest = 0;
};
Reach ReachOf(const GatherSource& source, int64_t first, int64_t count);

}  // namespace weightcast::worker
