#pragma once

#include "plan/segments.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::checkpoint {

/// The runs that a box shares with its whole tensor, checked: src offsets are bytes in the tensor,
/// dst offsets bytes in the box. `box_bytes`: the size of the caller's buffer for the box.
/// Errors: kInvalidArgument or kOutOfBounds, naming the tensor, when box, tensor and buffer do not fit each
/// other.
Result<plan::Segments> RunsOf(const TensorInfo& tensor, const Box& box, size_t box_bytes);

}  // namespace weightcast::checkpoint
