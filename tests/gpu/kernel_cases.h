#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/host_kernels.h"

/// Launches with random parameters, for comparing two implementations of a kernel.
namespace kernel_cases {

/// A case reads the first half of its memory (an arena) and writes into the second.
inline constexpr uint64_t kArena = 4U << 20;
inline constexpr uint64_t kHalf = kArena / 2;

/// One launch.
struct Case {
  weightcast::kernels::Grid grid;
  std::vector<uint8_t> parameter;  ///< Addresses in it are offsets in the arena.
  std::vector<size_t> addresses;   ///< Where in `parameter` an address lies.
  std::vector<uint8_t> arena;      ///< The bytes before the launch.
  std::vector<size_t> in_arena;    ///< Addresses of copy_pieces' list, which lies in the arena.

  /// Turns the offsets into addresses of an arena at `base`.
  void Relocate(uint64_t base);
};

/// Number `index` of the cases of a kernel; the first ones have all 16-bit values or edges of F32 in their
/// source. The same index gives the same case.
Case MakeCase(const std::string& kernel, uint32_t index);

}  // namespace kernel_cases
