#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weightcast::fake_cuda {

/// The number of the kernel of this name: those of src/kernels, and a few for the fake's own tests. -1: none.
int FindKernel(std::string_view name);
/// `bytes`: the parameters one after the other, as cuLaunchKernel took them; a kernel of ours has one only.
void RunKernel(uint32_t number, const uint32_t* grid, const uint32_t* block, std::byte* bytes);

/// A `.entry` of a PTX text.
struct PtxEntry {
  std::string name;
  std::vector<size_t> sizes;  ///< Bytes of each parameter.
};
struct Ptx {
  int version = 0;  ///< 10 * major + minor, as 78.
  int target = 0;   ///< As 90 for sm_90.
  std::vector<PtxEntry> entries;
};
/// False: this is not PTX.
bool ParsePtx(std::string_view text, Ptx& ptx);

}  // namespace weightcast::fake_cuda
