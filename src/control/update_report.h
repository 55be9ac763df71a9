#pragma once

#include <vector>

#include "control/machine_config.h"
#include "control/roster.h"
#include "control/update_words.h"
#include "protocol/messages.h"

namespace weightcast::control {

/// An update that has ended.
struct UpdateReport {
  const protocol::UpdateId& id;
  const Version& version;
  const std::vector<protocol::EngineOutcome>& absent;  ///< Engines that took no part, with the reason.
  const std::vector<protocol::WorkerName>& senders;    ///< The sources of each attempt, one after another.
  const std::vector<EngineEnd>& engines;
  const std::vector<Arrival>& arrivals;
};

/// What trainers are told of it.
[[nodiscard]] protocol::Done MakeDone(const MachineConfig& config, const Roster& roster,
                                      const UpdateReport& report);

}  // namespace weightcast::control
