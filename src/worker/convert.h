#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/convert.h"
#include "weightcast/tensor.h"

namespace weightcast::worker {

/// Between equal dtypes, and F32, F16 and BF16 among each other. Converts `count` dense elements (whole
/// bytes); the two must not overlap. Rounds to nearest, ties to even; what is too large becomes infinite; a
/// NaN stays a NaN, quiet, with its sign and upper payload.
void Convert(DType from, const std::byte* source, DType to, std::byte* target, int64_t count);

/// One element, for tests and tables. The GPU's kernels have the same functions.
using kernels::FromBf16;
using kernels::FromF16;
using kernels::ToBf16;
using kernels::ToF16;

}  // namespace weightcast::worker
