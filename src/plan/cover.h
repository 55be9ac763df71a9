#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/layout.h"
#include "weightcast/status.h"

namespace weightcast::plan {

/// The different boxes of one tensor and who holds each.
struct DistinctBoxes {
  std::vector<int64_t> coords;     ///< Per distinct box: offsets, then sizes; sorted.
  std::vector<int> holders;        ///< Ranks, box after box, ascending, each once.
  std::vector<uint32_t> first{0};  ///< Per box its first holder, and one more.

  [[nodiscard]] size_t size() const { return first.size() - 1; }
  [[nodiscard]] std::span<const int> HoldersOf(size_t box) const {
    return {holders.data() + first[box], first[box + 1] - first[box]};
  }
};

/// Sorts the boxes of each rank as RankBoxes has them. `ranks` ascend; `coords` as above.
void SortBoxesOfRanks(int dims, std::span<const int> ranks, std::vector<int64_t>& coords);

/// Groups boxes (`coords` as above, of `dims` dimensions) that are equal. `ranks` ascend.
DistinctBoxes GroupEqual(int dims, std::span<const int> ranks, std::span<const int64_t> coords);

/// Refuses boxes of which two overlap without being equal (both named, with their ranks), boxes that leave
/// out an element of the tensor (a missing box is named), and a box that one rank holds more than kMaxCopies
/// times. Sorted by rank, then as in RankBoxes; no box is empty or out of bounds.
Status CheckCover(const TensorInfo& tensor, std::span<const int> ranks, std::span<const int64_t> coords);

/// Refuses several shards of one tensor at one rank (`holder`: "rank 3") that disagree about it or overlap
/// without being equal; names the tensor, the holder and both boxes. Each box lies in its tensor.
Status CheckHoldings(std::string_view holder, std::span<const Holding> holdings);

}  // namespace weightcast::plan
