#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/layout.h"
#include "plan/route.h"
#include "plan/rules.h"
#include "weightcast/status.h"

namespace weightcast::plan {

/// How the source is chosen where several ranks hold the same box.
enum class Strategy {
  kBalanced,  ///< Spreads the bytes evenly, cutting a box between sources where that is needed. The default.
  kGreedy,    ///< Box by box, the source that has the fewest bytes so far.
};
std::string_view NameOf(Strategy strategy);
std::optional<Strategy> StrategyFromName(std::string_view name);

/// What a plan is made of. Destination ranks are numbered 0.. over all engines (JoinEngines).
/// The layouts and rules must outlive the request.
struct PlanRequest {
  const Layout& trainers;
  const Layout& inference;
  const NameRules& rules;
  Strategy strategy = Strategy::kBalanced;
  uint64_t memory = UINT64_MAX;                ///< That making, verifying and encoding it may take, in bytes.
  std::span<const std::string> unwanted = {};  ///< As ResolveLinks.
};

/// All bytes are bytes on the wire: those of the destination's dtype.
struct PlanReport {
  int64_t routes = 0;
  int64_t total_bytes = 0;
  std::vector<int64_t> sender_bytes;    ///< Per source rank.
  std::vector<int64_t> receiver_bytes;  ///< Per destination rank.
  int64_t busiest_sender_bytes = 0;
  int64_t busiest_receiver_bytes = 0;
  /// Busiest sender / mean of all senders; 1 when nothing is sent.
  double sender_imbalance = 1;
  /// What no plan can beat: the least bytes that the busiest link must carry, over the links of
  /// receivers (fixed by the layouts) and of senders (the best that any choice of sources allows).
  int64_t lower_bound_bytes = 0;
  /// What the busiest link of this plan carries.
  int64_t makespan_bytes = 0;
};

struct Plan {
  RoutingTable table;
  PlanReport report;
};

/// Finds for every destination box source boxes that cover it exactly once. The same request gives
/// the same plan, byte for byte. Errors: those of ResolveLinks; kInvalidArgument when an element
/// that an inference rank needs is held by no trainer (tensor and box named) or when a tensor of a
/// dtype below one byte is cut in the middle of a byte; kExhausted, with its numbers, for a plan that would
/// take more memory than the request allows (known before it is taken) or has more routes than tables can
/// number.
Result<Plan> MakePlan(const PlanRequest& request);

}  // namespace weightcast::plan
