#pragma once

#include "control/per_group.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// The membership rule's: control/membership_rule.h. Who is here is the roster's.
struct MembershipState {
  PerGroup<bool> join_timers;      ///< Armed.
  weightcast::Status engine_loss;  ///< Why the last engine that was lost was.
  friend bool operator==(const MembershipState&, const MembershipState&) = default;
};

}  // namespace weightcast::control
