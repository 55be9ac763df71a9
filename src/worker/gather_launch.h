#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "device/kernels.h"
#include "weightcast/tensor.h"
#include "worker/gather.h"

namespace weightcast::worker {

/// Where the items of a transfer begin in a device's staging block: so that kernels read and write 16 bytes
/// at a time.
inline constexpr uint64_t kLaunchAlignment = 16;

/// The launch that does to memory of a device what Gather does to host memory, bit for bit (`count` > 0).
/// Nothing where no kernel can: dtypes below one byte, casts that Convert does not have, addresses that are
/// not aligned for their dtype, boxes of more than eight dimensions that do not merge.
std::optional<device::Launch> GatherLaunch(const GatherSource& source, int64_t first, int64_t count, DType to,
                                           const std::byte* target);

}  // namespace weightcast::worker
