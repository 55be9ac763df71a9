#include "control/controller_machine.h"

#include "control/machine.h"

namespace weightcast::control {

MachineState InitialState() { return {}; }

void Step(const MachineConfig& config, MachineState& state, const Event& event, Actions& actions) {
  std::visit([&](const auto& what) { Machine(config, state, actions).On(what); }, event);
  state.roster.touched().Clear();
}

}  // namespace weightcast::control
