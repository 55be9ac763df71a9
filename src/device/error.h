#pragma once

#include <string_view>

#include "drivers/cuda/cuda.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// `result` of `call` ("cuMemAlloc") as a Status: Ok for CUDA_SUCCESS, else with the driver's own words.
/// Names the device of the ContextScope in which this thread is.
Status DriverStatus(drivers::Cuda& cuda, drivers::CUresult result, std::string_view call);
/// Makes a call of the driver: WC_CALL_DRIVER(cuda, EventRecord, event, stream) is the Status of
/// cuEventRecord.
#define WC_CALL_DRIVER(cuda, method, ...) \
  ::weightcast::device::DriverStatus(cuda, (cuda).method(__VA_ARGS__), "cu" #method)
/// The ordinal of the device whose ContextScope this thread is in; -1: none.
int& DeviceInScope();
/// Whether the error stays: the context is lost, every further call on it fails, and nothing runs on it any
/// more. An uncorrectable memory error, an illegal address in a kernel of anybody in this process.
bool LosesContext(drivers::CUresult result);

}  // namespace weightcast::device
