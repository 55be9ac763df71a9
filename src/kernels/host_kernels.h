#pragma once

#include <cstdint>
#include <span>
#include <string_view>

/// Every kernel of device.cc, run by the calling thread: the reference of tests, and the kernels of the fake
/// driver. The results are those of a GPU, bit for bit.
namespace weightcast::kernels {

/// Size of a launch, in one dimension.
struct Grid {
  uint32_t blocks;
  uint32_t threads;  ///< Of a block. A multiple of 32, at most 1,024; quantise_blocks_* wants 512.
};

/// `parameters` is that of cuLaunchKernel: one pointer for each parameter. Each kernel has one parameter, a
/// struct of this folder's headers; the addresses in it are those of this process.
using HostKernel = void (*)(Grid grid, void** parameters);

struct HostKernelEntry {
  std::string_view name;    ///< As in the PTX.
  uint32_t parameter_size;  ///< Bytes of its parameter.
  HostKernel run;
};

/// All kernels.
std::span<const HostKernelEntry> HostKernels();
/// The kernel of this name, or null.
const HostKernelEntry* FindHostKernel(std::string_view name);

}  // namespace weightcast::kernels
