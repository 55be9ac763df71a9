#pragma once

#include <memory>

#include "device/devices.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// The devices of this process, shared by all who ask and kept until the last of them lets go. Loads the
/// driver's library; kUnavailable, with the reason, where there is none or the setting `gpu` is off. Any
/// thread that may block in the driver.
Result<std::shared_ptr<Devices>> DevicesInProcess(const Settings& settings);

}  // namespace weightcast::device
