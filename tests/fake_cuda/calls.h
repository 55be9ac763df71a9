#pragma once

#include "drivers/cuda/abi.h"
#include "drivers/cuda/functions.h"

/// libcuda's functions as this library has them: a definition of another type does not compile.
#pragma GCC visibility push(default)
namespace weightcast::drivers {
extern "C" {
#define WC_DECLARE(method, symbol, parameters, arguments) CUresult symbol parameters;
WC_CUDA_NEEDED(WC_DECLARE)
WC_CUDA_WANTED(WC_DECLARE)
#undef WC_DECLARE
GetProcAddress cuGetProcAddress_v2;
MemcpyBatchAsync12 cuMemcpyBatchAsync;
MemcpyBatchAsync13 cuMemcpyBatchAsync_v2;
}
}  // namespace weightcast::drivers
#pragma GCC visibility pop
