#pragma once

#include "device/gpus.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// What the driver says of the context's device. Any thread that may block in the driver; errors as
/// DriverStatus.
Result<int> AttributeOf(const Context& context, drivers::CUdevice_attribute attribute);

}  // namespace weightcast::device
