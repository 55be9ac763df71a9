#pragma once

#include <memory>

#include "device/devices.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// As DevicesInProcess, for a call that may have nothing to do with GPUs: kUnavailable where this process has
/// not loaded the driver, and then nothing is loaded.
Result<std::shared_ptr<Devices>> DevicesInUse(const Settings& settings);

}  // namespace weightcast::device
