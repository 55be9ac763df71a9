#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "digest/constants.h"

namespace weightcast::digest {

/// Exact dot products of lanes of one block with the table. A block's are below 2^39.
using Dots = std::array<int64_t, kDots>;

/// Adds to `dots` those of `lanes` lanes that lie at `data` (two bytes each, of any alignment), the first of
/// which is lane `first` of its block. first + lanes is at most kBlockLanes. Any number of threads at once.
using DotsFunction = void (*)(const std::byte* data, size_t first, size_t lanes, Dots& dots);

/// For any processor.
void AddDotsPortable(const std::byte* data, size_t first, size_t lanes, Dots& dots);

/// The fastest that this processor runs; all give the same numbers.
DotsFunction FastestAddDots();

/// All that this processor runs, the fastest last.
std::vector<DotsFunction> AllAddDots();

}  // namespace weightcast::digest
