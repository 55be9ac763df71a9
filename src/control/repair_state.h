#pragma once

#include <cstdint>
#include <vector>

#include "control/update_words.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// The repair rule's, of the open update: control/repair_rule.h.
struct RepairState {
  std::vector<SessionId> unable;             ///< Sources that have failed by themselves.
  std::vector<SessionId> avoided;            ///< Those from which a path has failed.
  Holders holders = Holders::kTrainersLeft;  ///< To be tried next.
  uint32_t epoch = 0;                        ///< Of the plan that it waits for; 0: none.
  uint32_t repairs = 0;                      ///< Attempts from other holders.
  weightcast::Status loss;                   ///< The last of them.
  friend bool operator==(const RepairState&, const RepairState&) = default;
};

}  // namespace weightcast::control
