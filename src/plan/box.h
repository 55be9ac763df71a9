#pragma once

#include <cstddef>
#include <cstdint>

#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::plan {

/// More dimensions than any weight has; a bound for arrays on the stack.
inline constexpr int kMaxDims = 8;
inline constexpr size_t kMaxNameBytes = 1024;
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 50;

/// Refuses what no layout may hold: a name that is empty, too long or has control characters,
/// an unknown dtype, a negative dimension, more than kMaxDims dimensions or kMaxTensorBytes.
/// Once a tensor has passed, ElementsOf and BytesOf of it and of its boxes cannot overflow.
Status CheckTensor(const TensorInfo& tensor);

/// Refuses a box that does not lie inside `tensor` (which has passed CheckTensor). Empty boxes pass.
Status CheckBox(const Box& box, const TensorInfo& tensor);

using weightcast::ElementsOf;  // Of a shape: the overload below would hide it.
/// Elements in a box; 1 for a scalar's, 0 if any dimension is 0.
int64_t ElementsOf(const Box& box);
/// Whether `inner` lies wholly in `outer`.
bool Contains(const Box& outer, const Box& inner);

}  // namespace weightcast::plan
