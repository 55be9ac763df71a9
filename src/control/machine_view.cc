#include <algorithm>
#include <iterator>

#include "base/strings.h"
#include "control/controller_machine.h"
#include "control/roster_facts.h"

namespace weightcast::control {

namespace {

std::string_view PhaseOf(const MachineState& state) {
  if (state.updates.open) {
    // The engine that is least far tells.
    EngineStep least = EngineStep::kDone;
    for (const Target& target : state.engines.targets) least = std::min(least, target.step);
    if (least == EngineStep::kSourceless) return "repairing";
    if (least <= EngineStep::kGranted) return "granting";
    if (least == EngineStep::kWriting) return "writing";
    return least <= EngineStep::kActivating ? "committing" : "serving";
  }
  const PlanPhase phase = state.plan.phase;
  if (phase == PlanPhase::kPrepared && state.plan.stale) return "planning";
  static constexpr std::string_view kPhases[] = {"waiting for workers", "planning", "connecting", "planned"};
  static_assert(std::size(kPhases) == static_cast<size_t>(PlanPhase::kPrepared) + 1);
  return kPhases[static_cast<size_t>(phase)];
}

/// "resumed"; "pausing"; "pause failed"; "gone"; empty without an EngineControl.
std::string ControlText(const Group& group, const LastCommand& control) {
  if (group.control.session == 0) return group.controlled ? "gone" : "";
  if (control.failed) return StrCat(protocol::NameOf(control.command), " failed");
  static constexpr std::string_view kDone[] = {"paused", "activated", "resumed", "drained"};
  static constexpr std::string_view kDoing[] = {"pausing", "activating", "resuming", "draining"};
  const auto at = static_cast<size_t>(control.command);
  return std::string(control.done ? kDone[at] : kDoing[at]);
}

}  // namespace

protocol::ModelView ViewOf(const MachineState& state) {
  protocol::ModelView view;
  view.epoch = state.plan.epoch;
  view.phase = PhaseOf(state);
  view.version = state.updates.committed;
  if (state.updates.open) view.update = state.updates.open->id;
  for (const Worker& worker : state.roster.workers()) {
    view.workers.push_back({.name = NameOf(state.roster, worker),
                            .incarnation = worker.incarnation,
                            .alive = worker.connected,
                            .prepared = worker.prepared != 0 && worker.prepared == state.plan.epoch,
                            .state = worker.state,
                            .version = worker.group == kTrainers
                                           ? protocol::VersionOf(state.runs.run, worker.offered, worker.label)
                                           : worker.version});
  }
  for (const Group& group : state.roster.groups()) {
    if (group.id == kTrainers) continue;
    const Worker* first = WorkerAt(state.roster, group, 0);
    view.engines.push_back({.name = group.name,
                            .incarnation = first == nullptr ? 0 : first->incarnation,
                            .ranks = group.world_size,
                            .state = EngineStateOf(group),
                            .version = group.served,
                            .last_error = group.last_error.message(),
                            .control = ControlText(group, state.commands.last.Of(group.id))});
  }
  view.last_error = state.last_error.message();
  return view;
}

}  // namespace weightcast::control
