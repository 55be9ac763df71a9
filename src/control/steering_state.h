#pragma once

#include <cstdint>

#include "control/per_group.h"
#include "protocol/messages.h"

namespace weightcast::control {

/// The last order to an engine's EngineControl, and what came of it.
struct SteeringOrder {
  uint64_t order = 0;  ///< Counts.
  protocol::Move move = protocol::Move::kEvict;
  Version version;
  bool done = true;      ///< Answered, and well. A new EngineControl has no requests.
  bool failed = false;   ///< Answered, and badly.
  bool overdue = false;  ///< An update has waited for it in vain: others are not kept waiting again.
  friend bool operator==(const SteeringOrder&, const SteeringOrder&) = default;
};

/// The steering rule's: control/steering_rule.h. Which EngineControls are here is the roster's.
struct SteeringState {
  PerGroup<SteeringOrder> orders;
  friend bool operator==(const SteeringState&, const SteeringState&) = default;
};

}  // namespace weightcast::control
