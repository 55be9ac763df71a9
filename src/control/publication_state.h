#pragma once

#include <cstdint>

#include "weightcast/status.h"

namespace weightcast::control {

/// The latest publication that has been given up: a trainer that publishes it late is answered at once.
struct Withdrawn {
  int64_t number = -1;
  weightcast::Status reason;  ///< ok: superseded.
  friend bool operator==(const Withdrawn&, const Withdrawn&) = default;
};

/// The rule of publications': control/publication_rule.h. What each trainer offers is in the roster.
struct PublicationState {
  bool catch_up_timer = false;  ///< Armed.
  Withdrawn withdrawn;
  friend bool operator==(const PublicationState&, const PublicationState&) = default;
};

}  // namespace weightcast::control
