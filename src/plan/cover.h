#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/box.h"
#include "weightcast/status.h"

namespace weightcast::plan {

/// The different boxes of one tensor and who holds each.
struct DistinctBoxes {
  std::vector<int64_t> coords;     ///< Per distinct box: offsets, then sizes; sorted.
  std::vector<int> holders;        ///< Ranks, box after box, ascending.
  std::vector<uint32_t> first{0};  ///< Per box its first holder, and one more.

  [[nodiscard]] size_t size() const { return first.size() - 1; }
  [[nodiscard]] std::span<const int> HoldersOf(size_t box) const {
    return {holders.data() + first[box], first[box + 1] - first[box]};
  }
};

/// Groups boxes (`coords` as above, of `dims` dimensions) that are equal. `ranks` ascend.
DistinctBoxes GroupEqual(int dims, std::span<const int> ranks, std::span<const int64_t> coords);

/// Refuses boxes of which two overlap without being equal (both named, with their ranks), and boxes
/// that leave out an element of the tensor (a missing box is named). No box is empty or out of bounds.
Status CheckCover(const TensorInfo& tensor, std::span<const int> ranks, std::span<const int64_t> coords);

}  // namespace weightcast::plan
