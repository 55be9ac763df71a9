#include "control/opening_rule.h"

#include <string>
#include <utility>

#include "control/group_change.h"
#include "control/opening_state.h"
#include "control/roster_facts.h"

namespace weightcast::control {
namespace {

/// Updates to one version that may fail in one engine before it has to join again.
constexpr uint8_t kMaxTries = 3;

}  // namespace

// --- What the others ask --------------------------------------------------------------------------------

void OpeningRule::ForgetFailures(GroupId group) {
  EngineFailures& failures = state_.failures.Edit(group);
  failures.tries = 0;
  failures.at_fault = false;
}

void OpeningRule::ForgetGroup(GroupId group) { state_.failures.Remove(group); }

void OpeningRule::NoteEnd(const EngineEnd& end, const Version& version) {
  EngineFailures& failures = state_.failures.Edit(end.group);
  if (end.committed) {
    failures.tries = 0;
  } else if (!end.late) {
    failures.tries = failures.tried == version ? static_cast<uint8_t>(failures.tries + 1) : uint8_t{1};
    failures.tried = version;
    failures.at_fault = end.rank >= 0;
  }
}

bool OpeningRule::IsGivenUp(GroupId group, const Version& version) const {
  const EngineFailures& failures = state_.failures.Of(group);
  return failures.tried == version && failures.tries >= kMaxTries;
}

bool OpeningRule::IsAtFault(GroupId group, const Version& version) const {
  const EngineFailures& failures = state_.failures.Of(group);
  return failures.tried == version && failures.at_fault;
}

// --- Opening --------------------------------------------------------------------------------------------

Status OpeningRule::WhyFencing(const Group& group) const {
  if (!IsFencing(group)) return Status::Ok();
  for (const SessionId session : MembersOf(group)) {
    const Worker& worker = *roster_.Find(session);
    if (!worker.fencing) continue;
    return Error(Code::kFenced, TextOf(roster_, worker), " still waits for the end of a write of ",
                 protocol::ToString(*worker.fencing),
                 ": the writer is stopped or unreachable; end the process that the log of that rank "
                 "names, or let it continue");
  }
  return Status::Ok();
}

OpeningRule::Part OpeningRule::PartOf(const Group& group, NewUpdate& update) const {
  const auto absent = [&](bool committed, Status reason) {
    if (update.fresh)
      update.absent.push_back({.engine = group.name, .committed = committed, .reason = std::move(reason)});
    return update.fresh ? Part::kAbsent : Part::kIgnored;
  };
  if (group.served == update.version) return absent(true, Status::Ok());
  if (TakesBack(roster_, group, update.version))
    return absent(false, Error(Code::kInvalidArgument, "engine ", group.name, " has served version ",
                               ToString(NewestOf(roster_, group)), " already; publish a higher number"));
  if (!update.fresh && IsGivenUp(group.id, update.version)) return Part::kIgnored;
  if (Status overdue = rules_.commands->Overdue(group); !overdue.ok())
    return absent(false, std::move(overdue));
  Status fencing = WhyFencing(group);
  if (fencing.ok()) return Part::kTarget;
  return group.fence_overdue ? absent(false, std::move(fencing)) : Part::kFencing;
}

void OpeningRule::TryOpen() {
  const PlanFacts plan = rules_.planning->plan();
  if (!plan.delayed && plan.phase != PlanPhase::kPreparing && rules_.repair->OpenFromPeers()) return;
  const int64_t number = CommonOffer(roster_);
  if (rules_.updates->open() || plan.phase != PlanPhase::kPrepared || plan.stale || number < 0) return;
  NewUpdate update;
  bool held = true;
  std::string label;
  for (const SessionId session : roster_.trainers().ranks) {
    const Worker& worker = *roster_.Find(session);
    update.fresh = update.fresh || worker.waiting;
    held = held && worker.hold;
    if (worker.rank == 0) label = worker.label;
  }
  if (!update.fresh && !held) return;
  update.version = protocol::VersionOf(rules_.runs->run(), number, std::move(label));
  OpenFor(std::move(update));
}

void OpeningRule::OpenFor(NewUpdate update) {
  bool fencing = false;
  for (const Group& group : roster_.groups()) {
    if (group.id == kTrainers || !rules_.planning->Of(group.id).planned) continue;
    const Part part = PartOf(group, update);
    fencing = fencing || part == Part::kFencing;
    if (part == Part::kTarget) update.engines.push_back(group.id);
  }
  if (fencing != state_.fence_timer) {
    state_.fence_timer = fencing;
    out_.ArmOrDisarm(fencing, TimerKind::kFence, 0, config_.timeout);
  }
  if (!fencing && (update.fresh || !update.engines.empty())) rules_.updates->Open(std::move(update));
}

void OpeningRule::OnFenceTimer() {
  if (!state_.fence_timer) return;
  state_.fence_timer = false;
  for (const Group& group : roster_.groups())
    if (IsFencing(group)) GroupChange(roster_, group.id).SetFenceOverdue(true);
}

}  // namespace weightcast::control
