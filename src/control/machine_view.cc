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
      case EngineStep::kPausing:
      case EngineStep::kGranting:
      case EngineStep::kGranted:
        return "granting";
      case EngineStep::kWriting:
        return "writing";
      case EngineStep::kReady:
      case EngineStep::kHalting:
      case EngineStep::kCommitting:
      case EngineStep::kSettling:
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

std::string_view NameOf(EngineStep step) {
  static constexpr std::string_view kNames[] = {"sourceless", "pausing", "granting",   "granted",  "writing",
                                                "ready",      "halting", "committing", "settling", "serving",
                                                "admitting",  "done",    "out"};
  static_assert(std::size(kNames) == static_cast<size_t>(EngineStep::kOut) + 1);
  return kNames[static_cast<size_t>(step)];
}

namespace {

/// "admitted"; "pausing"; "pause failed"; "gone"; empty without an EngineControl.
std::string ControlText(const Group& group) {
  const Steering& control = group.steering;
  if (control.session == 0) return group.controlled ? "gone" : "";
  if (control.failed) return StrCat(protocol::NameOf(control.move), " failed");
  static constexpr std::string_view kDone[] = {"paused", "settled", "admitted", "evicted"};
  static constexpr std::string_view kDoing[] = {"pausing", "settling", "admitting", "evicting"};
  const auto move = static_cast<size_t>(control.move);
  return std::string(control.done ? kDone[move] : kDoing[move]);
}

}  // namespace

protocol::ModelView ViewOf(const MachineConfig& config, const MachineState& state) {
  Actions none;
  // A machine that is const changes nothing.
  const Machine machine(config, const_cast<MachineState&>(state), none);
  protocol::ModelView view;
  view.epoch = state.plan.epoch;
  view.phase = machine.Phase();
  view.version = state.committed;
  if (state.update) view.update = state.update->id;
  for (const Worker& worker : state.roster.workers()) {
    view.workers.push_back({.name = machine.NameOf(worker),
                            .host = {},
                            .incarnation = worker.incarnation,
                            .alive = worker.connected,
                            .prepared = worker.prepared != 0 && worker.prepared == state.plan.epoch,
                            .state = worker.state,
                            .version = worker.group == kTrainers
                                           ? protocol::VersionOf(state.run, worker.offered, worker.label)
                                           : worker.version,
                            .addresses = {},
                            .connections = {}});
  }
  for (const Group& group : state.roster.groups()) {
    if (group.id == kTrainers) continue;
    const Worker* first = state.roster.MemberOf(group, 0);
    view.engines.push_back({.name = group.name,
                            .incarnation = first == nullptr ? 0 : first->incarnation,
                            .ranks = group.world_size,
                            .state = machine.EngineStateOf(group),
                            .version = group.served,
                            .last_error = group.last_error.message(),
                            .control = ControlText(group)});
  }
  view.last_error = state.last_error.message();
  return view;
}

}  // namespace weightcast::control
