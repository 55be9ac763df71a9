#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/varint.h"
#include "plan/layout.h"

namespace weightcast::plan {

/// The tensors of one side, each as it stands in a table. Immutable.
class TensorTexts {
 public:
  explicit TensorTexts(const Layout& layout);
  void Write(int tensor, VarintWriter& out) const;

 private:
  std::string bytes_;
  std::vector<size_t> first_;  ///< Per tensor, and one more.
};

/// A shard of one side, as the layout has it.
struct LayoutShard {
  int rank = 0;
  int tensor = 0;
  size_t dims = 0;
  const int64_t* coords = nullptr;  ///< Null if its box comes from a pattern.
  uint32_t number = 0;              ///< Among the boxes that the rank holds of the tensor.
  uint32_t copy = 0;                ///< Among equal ones of them.
};

/// The tensors and shards of one side that the routes of one rank name, numbered as they turn up and written
/// down at once.
class TableShards {
 public:
  /// At most `routes` shards will turn up. `own_rank` says that all are of one rank, or is -1.
  TableShards(const Layout& layout, size_t routes, int own_rank);

  /// The number of a shard of this side.
  uint32_t Number(const LayoutShard& shard);
  /// Offsets, then sizes; until the next Number.
  [[nodiscard]] const int64_t* box(uint32_t shard) const {
    const Shard& known = shards_[shard];
    return known.kept != nullptr ? known.kept : coords_.data() + known.coord;
  }

  void WriteTensors(const TensorTexts& texts, VarintWriter& out) const;
  /// All ranks of the shards, ascending.
  void WriteRanks(VarintWriter& out) const;
  void WriteShards(VarintWriter& out) const;
  /// Which of equal shards each is, where that is not the first; nothing if all are.
  void WriteCopies(VarintWriter& out) const;

 private:
  struct Shard {
    int rank = 0;
    int tensor = 0;                 ///< Of the layout.
    const int64_t* kept = nullptr;  ///< By the layout; null for what comes from a pattern:
    uint32_t coord = 0;             ///< in coords_.
    uint32_t number = 0;            ///< As in LayoutShard.
  };

  /// Where the number of a shard is or is to be.
  uint32_t& Slot(const LayoutShard& shard);
  void Add(const LayoutShard& shard);

  const Layout& layout_;
  const bool by_tensor_;
  /// Shards by tensor, if each tensor has one at most; else by hash with open addressing, no memory per
  /// shard.
  std::vector<uint32_t> slots_;
  std::vector<Shard> shards_;
  std::vector<int64_t> coords_;
  std::vector<int> local_;    ///< Per tensor of the layout its place in tensors_, or -1.
  std::vector<int> tensors_;  ///< Of the layout.
  std::vector<bool> seen_;    ///< Per rank of the layout.
  VarintWriter written_;      ///< The shards.
  std::vector<std::pair<uint32_t, uint32_t>> copies_;  ///< Number here and copy, of those that are not first.
};

}  // namespace weightcast::plan
