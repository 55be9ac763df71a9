#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "plan/layout.h"

namespace weightcast::plan {

class LayoutAssembler;

/// Makes the layout of one side of one engine (or of all trainers) out of what each rank says that
/// it holds, out of patterns, or out of both. Boxes that form a pattern are kept as one.
/// Every error is kInvalidArgument, names the tensor and the ranks, and leaves the builder as it was.
class LayoutBuilder {
 public:
  explicit LayoutBuilder(int ranks) : ranks_(ranks) {}

  /// What one rank holds, as it registered, in any order: nothing, or any number of shards of a tensor.
  /// Refuses a rank outside 0..ranks-1 or given twice, a box outside its tensor, boxes of one tensor that
  /// overlap without being equal, and a tensor whose dtype or shape another rank sees differently (both
  /// shown).
  Status AddRank(int rank, std::span<const Holding> holdings);

  /// A tensor held by a regular pattern.
  Status AddPattern(const TensorInfo& tensor, const Pattern& pattern);
  /// Says that a tensor takes no part in updates; harmless if no rank holds it.
  void DeclareNotSent(std::string_view name);

  /// Checks that every rank has been added (where AddRank was used at all), that boxes of a tensor
  /// are exact replicas of each other or disjoint, and that none is missing; then compresses.
  Result<Layout> Build();

 private:
  struct Item {
    int32_t tensor;
    int32_t rank;
    uint64_t coord;
  };
  struct Seen {
    int index;
    int rank;  ///< Who told us first, -1 for a pattern.
  };

  Status CheckRank(int rank, std::span<const Holding> holdings) const;
  Status CheckSame(const TensorInfo& tensor, int rank) const;
  int Intern(const TensorInfo& tensor, int rank);
  Status CheckAllAdded() const;
  Status AddBoxes(const TensorInfo& tensor, bool not_sent, std::span<const Item> items,
                  LayoutAssembler& out) const;

  int ranks_;
  std::vector<bool> added_;
  std::unordered_map<std::string, Seen> seen_;
  std::vector<TensorInfo> infos_;
  std::vector<Item> items_;
  std::vector<int64_t> coords_;
  std::vector<std::pair<int, Pattern>> patterns_;
  std::set<std::string> not_sent_;
};

}  // namespace weightcast::plan
