#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "plan/layout.h"
#include "plan/route.h"

namespace weightcast::plan {

/// Sets of source ranks, each kept once. Inside the planner.
class ReplicaSets {
 public:
  /// `ranks` ascend.
  uint32_t Intern(std::span<const int> ranks);
  [[nodiscard]] size_t size() const { return first_.size() - 1; }
  [[nodiscard]] std::span<const int> operator[](size_t set) const {
    return {ranks_.data() + first_[set], first_[set + 1] - first_[set]};
  }
  /// Where a set's members begin in an array that has one entry per member of every set.
  [[nodiscard]] size_t FirstMember(size_t set) const { return first_[set]; }
  [[nodiscard]] size_t members() const { return ranks_.size(); }

 private:
  std::vector<int> ranks_;
  std::vector<size_t> first_{0};
  std::unordered_multimap<uint64_t, uint32_t> by_hash_;
};

static_assert(kMaxRanks <= RankCopy::kRanks && kMaxCopies <= RankCopy::kCopies);

/// What one shard of a destination rank needs out of one box that every rank of a replica set holds whole.
struct Piece {
  uint32_t link;
  RankCopy to;
  uint32_t set;
  uint32_t coord;  ///< Of its box, in source coordinates. Pieces alike share it.
  int64_t bytes;   ///< On the wire.
};

/// Everything that must be sent, before it is decided who sends it.
struct PieceList {
  std::vector<Link> links;
  std::vector<uint8_t> dims;      ///< Per link.
  std::vector<int> element_bits;  ///< Per link, on the wire.
  std::vector<Piece>
      pieces;  ///< By link, then destination rank, then its box, then place in the source tensor.
  LargeVector<int64_t> coords;  ///< Per box: offsets, then sizes.
  ReplicaSets sets;

  [[nodiscard]] std::span<const int64_t> offset(uint32_t link, uint32_t coord) const {
    return {coords.data() + coord, dims[link]};
  }
  [[nodiscard]] std::span<const int64_t> size(uint32_t link, uint32_t coord) const {
    return {coords.data() + coord + dims[link], dims[link]};
  }
};

/// What a table can number, with room for the cuts that AssignBalanced makes.
inline constexpr size_t kMaxPieces = size_t{3} << 30;
inline constexpr size_t kMaxCoords = size_t{3} << 30;

/// Cuts every destination box along the borders of the source boxes. Where a plan of these pieces would take
/// more than `memory` bytes to make they are only counted, so that the error tells how many they are.
/// Errors: see MakePlan.
Result<PieceList> CollectPieces(const Layout& trainers, const Layout& inference, std::vector<Link> links,
                                uint64_t memory = UINT64_MAX);

}  // namespace weightcast::plan
