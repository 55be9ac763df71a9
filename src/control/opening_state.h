#pragma once

#include <cstdint>

#include "control/per_group.h"
#include "protocol/messages.h"

namespace weightcast::control {

/// Of one engine, since it became complete.
struct EngineFailures {
  uint8_t tries = 0;  ///< Failed updates to `tried`.
  Version tried;
  bool at_fault = false;  ///< The last of them failed because of one of its own ranks.
  friend bool operator==(const EngineFailures&, const EngineFailures&) = default;
};

/// The opening rule's: control/opening_rule.h.
struct OpeningState {
  bool fence_timer = false;  ///< Armed.
  PerGroup<EngineFailures> failures;
  friend bool operator==(const OpeningState&, const OpeningState&) = default;
};

}  // namespace weightcast::control
