#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "plan/layout.h"

namespace weightcast::plan {

/// Writes a Layout, tensor by tensor; it checks nothing but what says so. For those that make
/// layouts: the builder, JoinEngines, the reader of the JSON.
class LayoutAssembler {
 public:
  /// Begins the next tensor; parts added from here on are its.
  void AddTensor(const TensorInfo& tensor, bool not_sent);
  void AddPatternPart(const Pattern& pattern, int shift);
  /// Sorted by rank, then as in RankBoxes; `coords` holds per box its offsets, then its sizes; none is empty.
  void AddBoxPart(std::span<const int> ranks, std::span<const int64_t> coords);

  /// Errors: kInvalidArgument when two tensors have one name.
  Result<Layout> Finish(int ranks) &&;

 private:
  Layout layout_;
  std::map<Pattern, int> pattern_index_;
};

}  // namespace weightcast::plan
