#pragma once

#include <cstdint>
#include <optional>

#include "digest/digest.h"
#include "kernels/digest.h"
#include "weightcast/tensor.h"
#include "worker/gather.h"

namespace weightcast::worker {

/// Elements that are digested as a part of some tensor.
struct DigestSource {
  GatherSource memory;  ///< Where they lie, in the tensor's dtype.
  Shape place;          ///< Where the memory's `box` begins in the tensor.
  int64_t first = 0;    ///< Of the box, in row-major order.
  int64_t count = 0;
};

/// What the kernel `digest` takes for memory of a device (`count` > 0); `sums` is not set. Nothing where it
/// cannot: rows that end inside a byte, addresses that are not aligned for their dtype where its elements are
/// apart.
std::optional<kernels::DigestParameters> DigestLaunch(const digest::TensorKey& key,
                                                      const DigestSource& source);

}  // namespace weightcast::worker
