#include "fake_cuda/kernels.h"

#include <algorithm>
#include <cstring>

#include "kernels/host_kernels.h"

namespace weightcast::fake_cuda {
namespace {

// For the fake's own tests.
struct FillBytes {
  uint64_t address;
  uint64_t length;
  uint64_t value;
};
void RunFillBytes(const FillBytes& fill) {
  std::memset(reinterpret_cast<void*>(fill.address), static_cast<int>(fill.value), fill.length);
}
constexpr std::string_view kFillBytes = "fake_fill";

}  // namespace

int FindKernel(std::string_view name) {
  if (name == kFillBytes) return 0;
  const auto all = kernels::HostKernels();
  const auto found = std::ranges::find(all, name, &kernels::HostKernelEntry::name);
  return found == all.end() ? -1 : static_cast<int>(found - all.begin()) + 1;
}

void RunKernel(uint32_t number, const uint32_t* grid, const uint32_t* block, std::byte* bytes) {
  if (number == 0) {
    FillBytes fill{};
    std::memcpy(&fill, bytes, sizeof fill);
    RunFillBytes(fill);
    return;
  }
  void* parameters[] = {bytes};
  kernels::HostKernels()[number - 1].run({.blocks = grid[0], .threads = block[0]}, parameters);
}

}  // namespace weightcast::fake_cuda
