// cuGetErrorName, cuGetErrorString.
#include "fake_cuda/calls.h"

namespace weightcast::drivers {
namespace {

struct Words {
  CUresult error;
  const char* name;
  const char* words;
};
#define WC_ERROR(name, words) {name, #name, words}
constexpr Words kWords[] = {
    WC_ERROR(CUDA_SUCCESS, "no error"),
    WC_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    WC_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    WC_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    WC_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    WC_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    WC_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    WC_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    WC_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    WC_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    WC_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    WC_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    WC_ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    WC_ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
             "the provided PTX was compiled with an unsupported toolchain."),
    WC_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    WC_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    WC_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    WC_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    WC_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    WC_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
             "part or all of the requested memory range is already mapped"),
    WC_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    WC_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    WC_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    WC_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
             "operation failed due to a previous error during capture"),
    WC_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const Words* Find(CUresult error) {
  for (const Words& each : kWords) {
    if (each.error == error) return &each;
  }
  return nullptr;
}

}  // namespace

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** name) {
  const Words* const found = Find(error);
  *name = found != nullptr ? found->name : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** words) {
  const Words* const found = Find(error);
  *words = found != nullptr ? found->words : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
}  // namespace weightcast::drivers
