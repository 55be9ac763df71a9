#pragma once

#include <cstdint>
#include <vector>

#include "control/members.h"
#include "control/per_group.h"
#include "control/plan_phase.h"

namespace weightcast::control {

/// What planning keeps of a group.
struct GroupPlan {
  uint32_t in_plan = 0;  ///< The last epoch whose plan it is part of, whole as it was then.
  bool planned = false;  ///< Has been part of a plan since it became complete.
  /// The same of a plan that was not for one update alone; sleep does not end it.
  bool in_full_plan = false;
  uint8_t failed_prepares = 0;  ///< Plans in a row whose preparation failed because of it.
  uint32_t failed_epoch = 0;    ///< The last of them.
  bool left_out = false;        ///< It could not be reached: plans are without it until kRetry fires.
  friend bool operator==(const GroupPlan&, const GroupPlan&) = default;
};

/// The planning rule's: control/plan_rule.h.
struct PlanState {
  uint32_t epoch = 0;
  PlanPhase phase = PlanPhase::kNone;
  bool stale = true;                    ///< Something has changed since it was made: make another between
                                        ///< updates.
  bool delay = false;                   ///< The timer before the next plan is armed.
  bool ever = false;                    ///< There has been one.
  std::vector<SessionId> sources;       ///< By number in the table: trainers by rank, or ranks of engines.
  bool from_engines = false;            ///< The sources are engines' ranks.
  bool partial = false;                 ///< Made for one update: not all are in it.
  std::vector<SessionId> destinations;  ///< By number in the table: engines by name, then ranks.
  PerGroup<GroupPlan> groups;
  friend bool operator==(const PlanState&, const PlanState&) = default;
};

}  // namespace weightcast::control
