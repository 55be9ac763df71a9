#pragma once

#include <cstddef>
#include <vector>

#include "device/describe.h"
#include "device/gpus.h"
#include "device/handles.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// Handles of the blocks [first, first + count) of `memory`, in order; each descriptor is the caller's. A
/// legacy allocation has one block, whose handle stands for all of it. Any thread that may block in the
/// driver. kUnavailable where it is not exportable; kOutOfBounds; kExhausted where descriptors ran out.
Result<std::vector<Handle>> Export(const Context& context, const DeviceMemory& memory, size_t first,
                                   size_t count);

}  // namespace weightcast::device
