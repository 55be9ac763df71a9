#include "device/error.h"

#include <algorithm>
#include <array>
#include <utility>

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

/// What fails with these calls of the driver, for who does not know them.
constexpr std::array<std::pair<std::string_view, std::string_view>, 18> kPurposes = {{
    {"cuInit", "CUDA cannot be initialised"},
    {"cuDevice", "the driver does not describe a device"},
    {"cuCtx", "a device's context cannot be used"},
    {"cuDevicePrimaryCtx", "a device's context cannot be used"},
    {"cuPointer", "the driver does not describe device memory"},
    {"cuMemGetAddressRange", "the driver does not describe device memory"},
    {"cuMemAlloc", "device memory cannot be allocated"},
    {"cuMemHost", "host memory cannot be pinned for a device"},
    {"cuIpcGet", "device memory cannot be exported to a peer"},
    {"cuIpcOpen", "a peer's device memory cannot be mapped"},
    {"cuMemset", "work on a device has failed"},
    {"cuMemRetain", "device memory cannot be exported to a peer"},
    {"cuMemExport", "device memory cannot be exported to a peer"},
    {"cuMemGetHandle", "device memory cannot be exported as a dma-buf"},
    {"cuMemcpy", "a copy to or from a device has failed"},
    {"cuModule", "the kernels cannot be loaded on a device"},
    {"cuLaunch", "a kernel cannot be started on a device"},
    {"cuMem", "a peer's device memory cannot be mapped"},
}};

std::string PurposeOf(std::string_view call) {
  const auto best = std::ranges::max_element(kPurposes, {}, [&](const auto& purpose) {
    return call.starts_with(purpose.first) ? purpose.first.size() : 0;
  });
  return StrCat(call.starts_with(best->first) ? best->second : "work on a device has failed", ": ");
}

std::string_view AdviceFor(drivers::CUresult result) {
  switch (CodeOf(result)) {
    case Code::kExhausted:
      return "; free memory there, or use less";
    case Code::kPermission:
      return "; allow this process to do that (container, user)";
    case Code::kUnavailable:
      return "; this device or driver cannot do it: docs/gpu.md says what is needed";
    default:
      return "; look for Xid errors with dmesg and nvidia-smi";
  }
}

}  // namespace

Status DriverStatus(drivers::Cuda& cuda, drivers::CUresult result, std::string_view call) {
  if (result == drivers::CUDA_SUCCESS) return Status::Ok();
  const char* name = nullptr;
  const char* words = nullptr;
  const int device = DeviceInScope();
  cuda.GetErrorName(result, &name);
  cuda.GetErrorString(result, &words);
  return {CodeOf(result), StrCat(PurposeOf(call), call, ": ", words != nullptr ? words : "no reason given",
                                 " (", name != nullptr ? name : "error", " ", static_cast<int>(result),
                                 device < 0 ? "" : StrCat(", device ", device), ")", AdviceFor(result))};
}

int& DeviceInScope() {
  static thread_local int device = -1;
  return device;
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
