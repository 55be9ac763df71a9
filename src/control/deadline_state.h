#pragma once

#include "control/per_group.h"

namespace weightcast::control {

/// The rule of deadlines': control/deadline_rule.h.
struct DeadlineState {
  /// grant_timeout runs on when one update that waits for the engine supersedes another.
  PerGroup<bool> grant_timers;
  /// Has not granted the open update at once: others need not wait for it.
  PerGroup<bool> overdue;
  friend bool operator==(const DeadlineState&, const DeadlineState&) = default;
};

}  // namespace weightcast::control
