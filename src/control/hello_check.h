#pragma once

#include "control/rules.h"

namespace weightcast::control {

/// Whether a worker may join as it says; the place that it names may still be taken.
[[nodiscard]] Status CheckHello(const MachineConfig& config, const Roster& roster, const Runs& runs,
                                const protocol::Hello& hello);

}  // namespace weightcast::control
