#pragma once

#include <memory>

#include "drivers/nvml/nvml.h"
#include "weightcast/status.h"

namespace weightcast::drivers {

/// LoadNvml from a library of another name, for tests.
Result<std::shared_ptr<Nvml>> LoadNvmlFrom(const char* soname);

}  // namespace weightcast::drivers
