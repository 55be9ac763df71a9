#pragma once

#include <cstdint>
#include <vector>

#include "protocol/messages.h"

namespace weightcast::control {

struct RunMember {
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  friend bool operator==(const RunMember&, const RunMember&) = default;
};

/// The rule of runs': control/run_rule.h.
struct RunState {
  protocol::Run run;     ///< Counted here, or adopted from trainers that have outlived a controller.
  protocol::Run before;  ///< That the trainer with which it began had been told of; none if new.
  uint64_t seen = 0;     ///< The highest that an inference rank has served.
  /// Trainers that have joined since the run began, or were told of it; by rank.
  std::vector<RunMember> members;
  friend bool operator==(const RunState&, const RunState&) = default;
};

}  // namespace weightcast::control
