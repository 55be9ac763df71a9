#pragma once

#include <memory>

#include "drivers/cuda/cuda.h"
#include "weightcast/status.h"

namespace weightcast::drivers {

/// The variable that names a library in place of libcuda.so.1, for tests and for drivers in other places.
inline constexpr const char* kCudaLibraryVariable = "WEIGHTCAST_CUDA_LIBRARY";

/// LoadCuda from a library of another name, at each call again. `remedy` ends the message when it cannot be
/// loaded.
Result<std::shared_ptr<Cuda>> LoadCudaFrom(const char* soname, const char* remedy);

}  // namespace weightcast::drivers
