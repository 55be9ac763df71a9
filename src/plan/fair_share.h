#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/pieces.h"

namespace weightcast::plan {

/// How bytes that several ranks could send are shared out, if any byte may go to any holder.
struct FairShare {
  /// The least that the busiest rank must send, whatever the choice.
  int64_t bound = 0;
  /// Bytes per member of every set, at ReplicaSets::FirstMember(set) + its place in the set; the
  /// members of a set together have that set's demand, and no rank has more than `bound`.
  std::vector<int64_t> quota;
};

/// `demand` holds the bytes that each set must send. Exact: a maximum flow from sets to ranks,
/// whose capacity is raised to that of the tightest cut until all demands fit.
FairShare ShareFairly(const ReplicaSets& sets, std::span<const int64_t> demand, int ranks);

}  // namespace weightcast::plan
