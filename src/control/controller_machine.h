#pragma once

#include "control/machine_config.h"
#include "control/machine_events.h"
#include "control/machine_state.h"
#include "protocol/messages.h"

/// The controller's side of docs/protocol.md for one model, as a pure function: no clock, no thread, no I/O.
namespace weightcast::control {

/// An empty model.
MachineState InitialState();

/// Applies one event; appends to `actions` what is to be done, in order. Any event is allowed in any state:
/// what is stale or unexpected is dropped, or costs its sender the session.
void Step(const MachineConfig& config, MachineState& state, const Event& event, Actions& actions);

/// What `weightcast info` shows of the model. Hosts and addresses are the shell's to fill in (by order of
/// state.workers); model name too.
protocol::ModelView ViewOf(const MachineState& state);

}  // namespace weightcast::control
