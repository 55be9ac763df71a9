#pragma once

#include <string_view>

#include "drivers/cuda/cuda.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// `result` of `call` ("cuMemAlloc") as a Status: Ok for CUDA_SUCCESS, else with the driver's own words.
Status DriverStatus(drivers::Cuda& cuda, drivers::CUresult result, std::string_view call);
/// Whether the error stays: the context is lost, every further call on it fails, and nothing runs on it any
/// more. An uncorrectable memory error, an illegal address in a kernel of anybody in this process.
bool LosesContext(drivers::CUresult result);

}  // namespace weightcast::device
