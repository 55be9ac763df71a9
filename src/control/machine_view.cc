#include <algorithm>

#include "control/controller_machine.h"
#include "control/machine.h"

namespace weightcast::control {

std::string_view Machine::Phase() const {
  if (s_.update) {
    // The engine that is least far tells.
    EngineStep least = EngineStep::kDone;
    for (const Target& target : s_.update->targets) least = std::min(least, target.step);
    switch (least) {
      case EngineStep::kSourceless:
        return "repairing";
      case EngineStep::kGranting:
      case EngineStep::kGranted:
        return "granting";
      case EngineStep::kWriting:
        return "writing";
      case EngineStep::kReady:
      case EngineStep::kCommitting:
        return "committing";
      default:
        return "serving";
    }
  }
  switch (s_.plan.phase) {
    case PlanPhase::kPlanning:
      return "planning";
    case PlanPhase::kPreparing:
      return "connecting";
    case PlanPhase::kPrepared:
      return s_.plan.stale ? "planning" : "planned";
    case PlanPhase::kNone:
      break;
  }
  return "waiting for workers";
}

wire::ModelView ViewOf(const MachineConfig& config, const MachineState& state) {
  MachineState copy = state;
  Actions none;
  const Machine machine(config, copy, none);
  wire::ModelView view;
  view.epoch = state.plan.epoch;
  view.phase = machine.Phase();
  view.version = state.committed;
  if (state.update) view.update = state.update->id;
  for (const Worker& worker : state.workers) {
    view.workers.push_back({.name = machine.NameOf(worker),
                            .host = {},
                            .incarnation = worker.incarnation,
                            .alive = worker.connected,
                            .prepared = worker.prepared != 0 && worker.prepared == state.plan.epoch,
                            .state = worker.state,
                            .version = worker.group == kTrainers
                                           ? Version{.run = state.run, .number = worker.offered}
                                           : worker.version,
                            .addresses = {},
                            .connections = {}});
  }
  for (const Group& group : state.groups) {
    if (group.id == kTrainers) continue;
    const auto first = std::find_if(state.workers.begin(), state.workers.end(), [&](const Worker& worker) {
      return worker.group == group.id && worker.rank == 0;
    });
    view.engines.push_back({.name = group.name,
                            .incarnation = first == state.workers.end() ? 0 : first->incarnation,
                            .ranks = group.world_size,
                            .state = machine.EngineStateOf(group),
                            .version = machine.EngineVersion(group),
                            .last_error = group.last_error.message()});
  }
  view.last_error = state.last_error.message();
  return view;
}

}  // namespace weightcast::control
