#pragma once

#include <cstddef>
#include <memory>

#include "drivers/cuda/functions.h"
#include "weightcast/status.h"

namespace weightcast::drivers {

/// The part of libcuda that we use, as a table that a test can replace. Each function is libcuda's own of
/// that name, in its newest form: arguments and results as in the driver API's manual. A library must have
/// all but the *wanted* ones, which give CUDA_ERROR_NOT_SUPPORTED where it does not have them.
/// No cuMulticast function may be added: it can put a host's GPUs out of service.
///
/// Threads: as libcuda, every function from any thread.
class Cuda {
 public:
  virtual ~Cuda() = default;

#define WC_METHOD(method, symbol, parameters, arguments) virtual CUresult method parameters = 0;
  WC_CUDA_NEEDED(WC_METHOD)
  WC_CUDA_WANTED(WC_METHOD)
#undef WC_METHOD
  /// Wanted: from CUDA 12.8 on. In the form of CUDA 13.0: an error does not say which copy it was.
  virtual CUresult MemcpyBatchAsync(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* lengths,
                                    size_t count, CUmemcpyAttributes* attributes, size_t* firsts,
                                    size_t attribute_count, CUstream stream) = 0;
};

enum class CudaUse {
  kIfInProcess,  ///< For a call that may have nothing to do with GPUs.
  kAsked,        ///< The user wants a GPU, or wants to know why there is none.
};

/// The CUDA driver of this machine, loaded once: the library that WEIGHTCAST_CUDA_LIBRARY names; else
/// libcuda.so.1 if this process has loaded it; else, if a GPU is asked for, libcuda.so.1 all the same.
/// kUnavailable says what is missing and what to do about it. That a machine has the library does not mean
/// that it has a device, and cuInit has not been called. Any thread; 1 us where there is none.
Result<std::shared_ptr<Cuda>> LoadCuda(CudaUse use);

}  // namespace weightcast::drivers
