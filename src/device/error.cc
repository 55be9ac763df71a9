#include "device/error.h"

#include "base/strings.h"

namespace weightcast::device {
namespace {

Code CodeOf(drivers::CUresult result) {
  switch (result) {
    case drivers::CUDA_ERROR_OUT_OF_MEMORY:
      return Code::kExhausted;
    case drivers::CUDA_ERROR_NOT_PERMITTED:
      return Code::kPermission;
    case drivers::CUDA_ERROR_NOT_SUPPORTED:
    case drivers::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
      return Code::kUnavailable;
    default:
      return Code::kInternal;
  }
}

}  // namespace

Status DriverStatus(drivers::Cuda& cuda, drivers::CUresult result, std::string_view call) {
  if (result == drivers::CUDA_SUCCESS) return Status::Ok();
  const char* name = nullptr;
  const char* words = nullptr;
  cuda.GetErrorName(result, &name);
  cuda.GetErrorString(result, &words);
  return {CodeOf(result), StrCat(call, ": ", words != nullptr ? words : "no reason given", " (",
                                 name != nullptr ? name : "error", " ", static_cast<int>(result), ")")};
}

bool LosesContext(drivers::CUresult result) {
  switch (result) {
    case drivers::CUDA_ERROR_DEINITIALIZED:
    case drivers::CUDA_ERROR_DEVICE_UNAVAILABLE:
    case drivers::CUDA_ERROR_ECC_UNCORRECTABLE:
    case drivers::CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case drivers::CUDA_ERROR_CONTAINED:
    case drivers::CUDA_ERROR_ILLEGAL_ADDRESS:
    case drivers::CUDA_ERROR_LAUNCH_TIMEOUT:
    case drivers::CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case drivers::CUDA_ERROR_ASSERT:
    case drivers::CUDA_ERROR_HARDWARE_STACK_ERROR:
    case drivers::CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case drivers::CUDA_ERROR_MISALIGNED_ADDRESS:
    case drivers::CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case drivers::CUDA_ERROR_INVALID_PC:
    case drivers::CUDA_ERROR_LAUNCH_FAILED:
    case drivers::CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case drivers::CUDA_ERROR_UNKNOWN:
      return true;
    default:
      return false;
  }
}

}  // namespace weightcast::device
