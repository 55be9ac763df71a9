#include "control/engine_rule.h"

#include <utility>

#include "control/engine_state.h"
#include "control/group_change.h"
#include "control/roster_facts.h"

namespace weightcast::control {

using protocol::Command;

// --- What the others ask --------------------------------------------------------------------------------

const EngineProgress* EngineRule::Of(GroupId group) const { return std::as_const(state_).Of(group); }

const EngineCounts& EngineRule::counts() const { return state_.counts(); }

std::vector<GroupId> EngineRule::GroupsAt(EngineStep step) const {
  std::vector<GroupId> groups;
  for (const Target& target : state_.targets)
    if (target.step == step) groups.push_back(target.group);
  return groups;
}

void EngineRule::Open(const std::vector<GroupId>& engines, EngineStep first) {
  for (const GroupId group : engines) {
    Target& target = state_.targets.emplace_back();
    target.group = group;
    target.step = first;
  }
  state_.Index();
}

std::vector<EngineEnd> EngineRule::Close() {
  std::vector<EngineEnd> ends;
  for (Target& target : std::exchange(state_, {}).targets)
    ends.push_back({.group = target.group,
                    .committed = target.step == EngineStep::kDone,
                    .late = target.late,
                    .reason = std::move(target.reason),
                    .rank = target.rank});
  return ends;
}

// --- Steps ----------------------------------------------------------------------------------------------

void EngineRule::SetStep(Target& target, EngineStep step) {
  state_.Move(target, step);
  roster_.touched().Add(target.group);
}

void EngineRule::Enter(Target& target, EngineStep step) {
  SetStep(target, step);
  if (step == EngineStep::kReady)
    out_.Log(LogLevel::kInfo, "engine ", roster_.FindGroup(target.group)->name, " has every byte of version ",
             ToString(rules_.updates->update().version));
  const bool timed =
      step == EngineStep::kWriting || step == EngineStep::kCommitting || step == EngineStep::kServing;
  if (!timed) return rules_.deadlines->End(target.group);
  rules_.deadlines->EndGrants(target.group);
  rules_.deadlines->Begin(target.group);
}

void EngineRule::BeginGrants(GroupId id) {
  const Group& group = *roster_.FindGroup(id);
  Target& target = *state_.Of(id);
  if (group.counts.in_place != 0 && group.controlled) {
    AskControl(target, EngineStep::kPausing, Command::kPause, {});
  } else {
    AskForGrants(target);
  }
}

void EngineRule::AskForGrants(Target& target) {
  rules_.ranks->Ask(target.group);
  SetStep(target, EngineStep::kGranting);
  rules_.deadlines->BeginGrants(target.group);
}

void EngineRule::Advance() {
  StartGranted();
  CommitReady();
}

/// Until a source is told of its grant nothing can be written: a rank that fails before costs no engine
/// its version.
void EngineRule::StartGranted() {
  if (state_.counts().At(EngineStep::kGranted) == 0) return;
  if (state_.ungranted() != 0 && rules_.updates->SwitchesTogether()) return;
  const std::vector<GroupId> granted = GroupsAt(EngineStep::kGranted);
  rules_.ranks->Start(granted);
  rules_.updates->MarkStarted();
  for (const GroupId group : granted) {
    Target& target = *state_.Of(group);
    Enter(target, EngineStep::kWriting);
    // Ranks without a source are ready as soon as they have granted.
    if (rules_.ranks->AllAt(group, RankStep::kReady)) EndPart(target);
  }
}

/// When all ranks of an engine have a part, each hands it on, and grants the next one when it has.
void EngineRule::EndPart(Target& target) {
  if (target.step != EngineStep::kWriting) return;
  if (IsLastPart(roster_, target.group, target.part)) return Enter(target, EngineStep::kReady);
  state_.Move(target, EngineStep::kGranting, target.part + 1);
  rules_.ranks->AskForPart(target.group, target.part);
  rules_.deadlines->Begin(target.group);
}

void EngineRule::CommitReady() {
  if (state_.counts().At(EngineStep::kReady) == 0) return;
  const bool waiting = state_.counts().Before(EngineStep::kReady) != 0;
  if (waiting && rules_.updates->SwitchesTogether()) return;
  for (Target& target : state_.targets)
    if (target.step == EngineStep::kReady) AskControl(target, EngineStep::kHalting, Command::kPause, {});
}

void EngineRule::RanksCame(GroupId group, RankStep step) {
  Target& target = *state_.Of(group);
  switch (step) {
    case RankStep::kGranted:
      return Enter(target, EngineStep::kGranted);
    case RankStep::kReady:
      return EndPart(target);
    case RankStep::kCommitted:
      return AskControl(target, EngineStep::kActivating, Command::kActivate,
                        rules_.updates->update().version);
    case RankStep::kServing:
      return AskControl(target, EngineStep::kResuming, Command::kResume, rules_.updates->update().version);
    default:
      return;
  }
}

// --- Engines with an EngineControl ----------------------------------------------------------------------

void EngineRule::AskControl(Target& target, EngineStep step, Command command, const Version& version) {
  SetStep(target, step);
  const Group& group = *roster_.FindGroup(target.group);
  switch (rules_.commands->Ask(group, command, version)) {
    case Commands::Answer::kDone:
      return CommandDone(target.group);
    case Commands::Answer::kAwaited:
      return rules_.deadlines->EndGrants(target.group);
    case Commands::Answer::kGone:
      return CommandFailed(target.group, Error(Code::kUnavailable, "the control of engine ", group.name,
                                               " is gone; start the engine's front end again"));
  }
}

void EngineRule::CommandDone(GroupId group) {
  Target* target = state_.Of(group);
  if (target == nullptr) return;
  switch (target->step) {
    case EngineStep::kPausing:
      rules_.deadlines->End(group);
      return AskForGrants(*target);
    case EngineStep::kHalting:
      rules_.ranks->Commit(group);
      return Enter(*target, EngineStep::kCommitting);
    case EngineStep::kActivating:
      rules_.ranks->Serve(group);
      return Enter(*target, EngineStep::kServing);
    case EngineStep::kResuming:
      return Enter(*target, EngineStep::kDone);
    default:
      return;
  }
}

/// A Serve that has gone out is never taken back.
void EngineRule::CommandFailed(GroupId group, const Status& reason) {
  Target* target = state_.Of(group);
  if (target == nullptr) return;
  if (target->step == EngineStep::kResuming) return Enter(*target, EngineStep::kDone);
  if (IsCommanded(target->step)) Out(group, reason, nullptr, 0);
}

// --- Out ------------------------------------------------------------------------------------------------

void EngineRule::Out(GroupId id, const Status& reason, const Worker* who, SessionId fenced_already) {
  Target& target = *state_.Of(id);
  if (target.step == EngineStep::kOut) return;
  const bool started = target.step >= EngineStep::kWriting;
  SetStep(target, EngineStep::kOut);
  target.reason = reason;
  target.rank = who == nullptr ? -1 : int64_t{who->rank};
  GroupChange(roster_, id).SetLastError(reason);
  rules_.deadlines->End(id);
  out_.LogAndCount("control.engines_out", LogLevel::kWarning, "engine ", roster_.FindGroup(id)->name,
                   " is out of ", protocol::ToString(rules_.updates->update().id), ": ", reason.message());
  rules_.ranks->Abort(id, reason, fenced_already);
  if (started) rules_.ranks->StopSenders(id);
  rules_.repair->EngineOut(id, reason);
}

void EngineRule::OutUpTo(EngineStep last, const Status& reason) {
  for (const Target& target : state_.targets)
    if (target.step <= last) Out(target.group, reason, nullptr, 0);
}

void EngineRule::LoseRank(GroupId group, const Status& reason, const Worker* who) {
  Target* target = state_.Of(group);
  if (target == nullptr || target->step == EngineStep::kOut) return;
  if (target->step < EngineStep::kServing) return Out(group, reason, who, 0);
  Enter(*target,
        EngineStep::kDone);  // All had committed: it is refilled when whole again.
}

void EngineRule::LoseSources(const Status& reason) {
  for (Target& target : state_.targets) {
    if (target.step >= EngineStep::kReady) continue;
    // A plan for what it lacks would have to be one for the parts that are left.
    const bool has_parts = target.part > 0 || (!IsLastPart(roster_, target.group, target.part) &&
                                               rules_.ranks->AnyReady(target.group));
    if (has_parts) {
      Out(target.group, reason, nullptr, 0);
    } else if (target.step != EngineStep::kSourceless) {
      rules_.ranks->StopSenders(target.group);
      SetStep(target, EngineStep::kSourceless);
      rules_.ranks->LoseSources(target.group);
      rules_.deadlines->End(target.group);
      rules_.deadlines->Begin(target.group);
    }
  }
}

// --- Late, or withdrawn ---------------------------------------------------------------------------------

/// Whether it is the engine that has not come: to grant, or to switch to a version that others serve already.
bool EngineRule::IsLate(const Target& target) const {
  if (target.part > 0) return false;
  const bool switches = !rules_.updates->update().fresh && target.step == EngineStep::kCommitting &&
                        HasShadow(*roster_.FindGroup(target.group));
  return target.step == EngineStep::kGranting || switches;
}

Engines::Lateness EngineRule::lateness() const {
  Lateness all;
  for (const Target& target : state_.targets) {
    const bool late = IsLate(target);
    const bool grants = target.step == EngineStep::kGranting;
    all.waiting = all.waiting || (!late && target.step < EngineStep::kDone);
    all.through = all.through || !late;
    all.overdue = all.overdue && (!late || (grants && rules_.deadlines->IsOverdue(target.group)));
    all.begun = all.begun || (late && !grants);
  }
  return all;
}

void EngineRule::DropLate() {
  for (Target& target : state_.targets) {
    if (!IsLate(target)) continue;
    rules_.ranks->Abort(target.group, Status::Ok());
    const bool granting = target.step == EngineStep::kGranting;
    // An engine that has not granted does not get the whole time again.
    if (!granting || !rules_.deadlines->IsGranting(target.group)) rules_.deadlines->End(target.group);
    SetStep(target, EngineStep::kOut);
    target.late = true;
    target.reason = Error(Code::kUnavailable, "engine ", roster_.FindGroup(target.group)->name,
                          granting ? " granted no memory for version " : " did not switch to version ",
                          ToString(rules_.updates->update().version),
                          " before the next update was to begin; let it call wait or begin more often");
  }
}

/// An engine that is late does not get the whole time again.
void EngineRule::Withdraw() {
  for (const Target& target : state_.targets) {
    if (target.step != EngineStep::kOut) rules_.ranks->Abort(target.group, Status::Ok());
    if (!rules_.deadlines->IsGranting(target.group)) rules_.deadlines->End(target.group);
  }
}

}  // namespace weightcast::control
