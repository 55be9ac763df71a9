#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "gpu/kernel_cases.h"
#include "kernels/host_kernels.h"
#include "kernels/ptx.h"

namespace weightcast::kernels {
namespace {

/// The bytes after a launch of this size.
std::vector<uint8_t> RunCase(const HostKernelEntry& kernel, kernel_cases::Case one, Grid grid) {
  const auto before = one.arena;
  const auto in_arena = one.in_arena;
  one.Relocate(reinterpret_cast<uint64_t>(one.arena.data()));
  EXPECT_EQ(one.parameter.size(), kernel.parameter_size) << kernel.name;
  void* parameter = one.parameter.data();
  kernel.run(grid, &parameter);
  for (const size_t at : in_arena) std::memcpy(&one.arena[at], &before[at], 8);
  return one.arena;
}

TEST(Cases, TheSizeOfALaunchDoesNotChangeTheResult) {
  for (const auto& kernel : HostKernels()) {
    for (uint32_t index = 0; index < 12; ++index) {
      const auto one = kernel_cases::MakeCase(std::string(kernel.name), index);
      const Grid other{3, kernel.name.starts_with("quantise_blocks_") ? one.grid.threads : 64};
      EXPECT_TRUE(RunCase(kernel, one, one.grid) == RunCase(kernel, one, other))
          << kernel.name << ", case " << index;
    }
  }
}

TEST(HostKernels, HaveTheNamesOfThePtx) {
  std::set<std::string> expected;
  for (const auto& kernel : HostKernels()) {
    expected.emplace(kernel.name);
    EXPECT_EQ(FindHostKernel(kernel.name), &kernel);
  }
  EXPECT_EQ(FindHostKernel("cast"), nullptr);
  for (const std::string_view text : {PtxForSm80(), PtxForSm90()}) {
    constexpr std::string_view kEntry = ".entry ";
    std::set<std::string> found;
    for (size_t at = text.find(kEntry); at != text.npos; at = text.find(kEntry, at + 1)) {
      const size_t begin = at + kEntry.size();
      found.emplace(text.substr(begin, text.find_first_of("(\n", begin) - begin));
    }
    EXPECT_EQ(found, expected);
    EXPECT_EQ(text.data()[text.size()], '\0');
  }
}

}  // namespace
}  // namespace weightcast::kernels
