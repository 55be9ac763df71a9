#pragma once

#include <string_view>

/// The kernels as PTX text, for cuModuleLoadDataEx. The driver compiles it for its GPU.
namespace weightcast::kernels {

/// For compute capability 8.0 and above; needs a driver of CUDA 11 or later. A zero byte follows the text.
std::string_view PtxForSm80();
/// For compute capability 9.0 and above, with its FP8 conversion; needs a driver of CUDA 11.8 or later.
std::string_view PtxForSm90();

}  // namespace weightcast::kernels
