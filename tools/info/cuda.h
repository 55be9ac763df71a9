#pragma once

#include <string>

#include "device/inventory.h"
#include "tools/common/json.h"

namespace weightcast::tools {

/// The devices of the CUDA driver for a person, or why there is none.
std::string CudaText(const device::Inventory& inventory);
/// The same as an object.
Json CudaJson(const device::Inventory& inventory);

}  // namespace weightcast::tools
