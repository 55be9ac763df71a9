#pragma once

#include <cstdint>

#include "control/per_group.h"
#include "protocol/messages.h"

namespace weightcast::control {

/// The last command to an engine's EngineControl, and what came of it.
struct LastCommand {
  uint64_t order = 0;  ///< Counts.
  protocol::Command command = protocol::Command::kDrain;
  Version version;
  bool done = true;      ///< Answered, and well. A new EngineControl has no requests.
  bool failed = false;   ///< Answered, and badly.
  bool overdue = false;  ///< An update has waited for it in vain: others are not kept waiting again.
  friend bool operator==(const LastCommand&, const LastCommand&) = default;
};

/// The command rule's: control/command_rule.h. Which EngineControls are here is the roster's.
struct CommandState {
  PerGroup<LastCommand> last;
  friend bool operator==(const CommandState&, const CommandState&) = default;
};

}  // namespace weightcast::control
