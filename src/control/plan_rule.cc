#include "control/plan_rule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "control/group_change.h"
#include "control/plan_state.h"
#include "control/roster_facts.h"
#include "control/worker_change.h"

namespace weightcast::control {
namespace {

/// Workers that start together join within this time; a plan waits for it.
constexpr Duration kQuiet = std::chrono::milliseconds(50);
/// Preparations that may fail in a row because of one engine or trainer.
constexpr uint8_t kMaxFailedPrepares = 3;
/// Beyond this the time between two tries does not grow.
constexpr uint8_t kMostFailedPrepares = 8;

/// A worker that did not answer, or had no room, may answer later. An answer that refuses would come again.
bool MayPass(Code code) {
  return code == Code::kTimedOut || code == Code::kUnavailable || code == Code::kPeerDead ||
         code == Code::kExhausted || code == Code::kCancelled;
}

/// Two leases, then twice as long each time, up to 16.
Duration RetryAfter(Duration lease, uint8_t failed) {
  return 2 * lease * (1 << (failed - kMaxFailedPrepares));
}

}  // namespace

// --- What the others ask --------------------------------------------------------------------------------

PlanFacts PlanRule::plan() const {
  return {.epoch = state_.epoch,
          .phase = state_.phase,
          .stale = state_.stale,
          .delayed = state_.delay,
          .from_engines = state_.from_engines,
          .sources = state_.sources,
          .destinations = state_.destinations};
}

GroupFacts PlanRule::Of(GroupId group) const {
  const GroupPlan& known = state_.groups.Of(group);
  return {.planned = known.planned, .left_out = known.left_out};
}

bool PlanRule::IsMember(const Worker& worker) const {
  return worker.planned != 0 && worker.planned == state_.epoch;
}

void PlanRule::MarkStale() { state_.stale = true; }

void PlanRule::Changed(const Worker& worker) { state_.stale = state_.stale || IsMember(worker); }

void PlanRule::Lose(const Worker& worker) {
  GroupPlan& group = state_.groups.Edit(worker.group);
  if (IsComplete(*roster_.FindGroup(worker.group))) {
    group.planned = group.in_full_plan = false;
    group.in_plan = 0;
  }
  // What is known of how it can be reached holds for its present ranks.
  group.failed_prepares = 0;
  if (std::exchange(group.left_out, false)) out_.Disarm(TimerKind::kRetry, worker.group);
  Changed(worker);
}

void PlanRule::Unplan(GroupId id, bool sleeps) {
  roster_.touched().Add(id);
  GroupPlan& group = state_.groups.Edit(id);
  group.planned = false;
  if (!sleeps) group.in_plan = 0;
}

void PlanRule::ForgetGroup(GroupId group) { state_.groups.Remove(group); }

void PlanRule::EndPartial() { state_.stale = state_.stale || state_.partial; }

// --- The next plan --------------------------------------------------------------------------------------

bool PlanRule::IsPlannable(const Group& group) const {
  return IsWhole(group) && !state_.groups.Of(group.id).left_out;
}

bool PlanRule::IsPossible() const {
  if (!IsWhole(roster_.trainers())) return false;
  uint32_t needed = state_.ever ? 1 : std::max<uint32_t>(1, config_.min_engines);
  for (const Group& group : roster_.groups())
    if (group.id != kTrainers && IsPlannable(group) && --needed == 0) return true;
  return false;
}

void PlanRule::Replan() {
  if (!state_.stale) {
    state_.stale = std::ranges::any_of(roster_.touched().Among(roster_.groups()), [&](GroupId id) {
      return id != kTrainers && state_.groups.Of(id).in_plan != state_.epoch &&
             IsPlannable(*roster_.FindGroup(id));
    });
  }
  if (!state_.stale || state_.phase == PlanPhase::kPlanning) return;
  if (!IsPossible()) return Drop();
  if (state_.delay) return;
  state_.delay = true;
  out_.Arm(TimerKind::kPlan, 0, std::min(kQuiet, config_.lease / 10));
}

void PlanRule::OnPlanTimer() {
  state_.delay = false;
  if (rules_.updates->open() || !state_.stale || state_.phase == PlanPhase::kPlanning || !IsPossible())
    return;
  if (!rules_.repair->OpenFromPeers()) StartPlan();
}

void PlanRule::StartPlan() {
  Drop();
  roster_.BeginEpoch(++state_.epoch);
  state_.phase = PlanPhase::kPlanning;
  state_.stale = state_.partial = state_.from_engines = false;

  std::vector<const Group*> engines;
  for (const Group& group : roster_.groups())
    if (group.id != kTrainers && IsPlannable(group)) engines.push_back(&group);
  std::ranges::sort(engines, {}, &Group::name);
  const auto members = [&](const Group& group) {
    state_.groups.Edit(group.id).in_plan = state_.epoch;
    for (const SessionId session : group.ranks)
      WorkerChange(roster_, *roster_.Find(session)).SetPlanned(state_.epoch);
    return group.ranks;
  };
  MakePlan action{
      .epoch = state_.epoch, .sources = members(roster_.trainers()), .from_engines = false, .engines = {}};
  state_.sources = action.sources;
  state_.destinations.clear();
  for (const Group* engine : engines) {
    const auto& ranks = action.engines.emplace_back(members(*engine));
    state_.destinations.insert(state_.destinations.end(), ranks.begin(), ranks.end());
  }
  out_.Add(std::move(action));
}

uint32_t PlanRule::PlanRepair(std::vector<SessionId> sources, bool from_engines,
                              const std::vector<GroupId>& engines) {
  Drop();
  roster_.BeginEpoch(++state_.epoch);
  state_.phase = PlanPhase::kPlanning;
  state_.stale = false;
  state_.partial = true;
  state_.from_engines = from_engines;
  state_.sources = std::move(sources);
  state_.destinations.clear();
  MakePlan action{
      .epoch = state_.epoch, .sources = state_.sources, .from_engines = from_engines, .engines = {}};
  for (const GroupId id : engines) {
    const auto& ranks = action.engines.emplace_back(roster_.FindGroup(id)->ranks);
    state_.destinations.insert(state_.destinations.end(), ranks.begin(), ranks.end());
  }
  for (const auto* members : {&state_.sources, &state_.destinations})
    for (const SessionId session : *members)
      if (const Worker* worker = roster_.Find(session))
        WorkerChange(roster_, *worker).SetPlanned(state_.epoch);
  out_.Add(std::move(action));
  return state_.epoch;
}

void PlanRule::Drop() {
  if (state_.phase == PlanPhase::kPreparing) out_.Disarm(TimerKind::kPrepare);
  state_.phase = PlanPhase::kNone;
}

// --- It is made -----------------------------------------------------------------------------------------

bool PlanRule::OnPlanMade(uint32_t epoch) {
  if (epoch != state_.epoch || state_.phase != PlanPhase::kPlanning) return false;
  if (state_.stale) {  // Something has changed meanwhile.
    state_.phase = PlanPhase::kNone;
    return true;
  }
  state_.phase = PlanPhase::kPreparing;
  state_.ever = state_.ever || !state_.partial;
  for (const Group& listed : roster_.groups()) {
    roster_.touched().Add(listed.id);
    GroupPlan& group = state_.groups.Edit(listed.id);
    const bool planned = IsComplete(listed) &&
                         AnyMember(roster_, listed, [&](const Worker& worker) { return IsMember(worker); });
    group.planned = planned || (group.planned && state_.partial);
    group.in_full_plan = group.in_full_plan || (planned && !state_.partial);
  }
  for (const Worker& worker : roster_.workers())
    if (worker.group == kTrainers && worker.connected && IsMember(worker))
      rules_.runs->Join(worker.rank, worker.incarnation);
  out_.Add(HandOut{epoch});
  out_.Arm(TimerKind::kPrepare, 0, config_.timeout);
  return true;
}

bool PlanRule::OnPlanFailed(const PlanFailed& event) {
  if (event.epoch != state_.epoch || state_.phase != PlanPhase::kPlanning) return false;
  state_.phase = PlanPhase::kNone;
  const bool outdated = state_.stale;
  state_.stale = true;
  if (outdated) return true;
  if (rules_.repair->IsPlanned()) {
    rules_.repair->PlanFailed(event.reason);
    return true;
  }
  out_.Log(LogLevel::kError, "plan: epoch ", event.epoch, " is not possible: ", event.reason.message());
  rules_.last_error = event.reason;
  const std::vector<SessionId> concerned = event.concerned.empty() ? Newcomers() : event.concerned;
  if (concerned.empty()) Void(config_.lease);  // There was room for the same plan before.
  rules_.membership->Refuse(concerned, event.reason);
  return true;
}

/// Whose arrival made a plan too large: the newest engine that no plan of everybody has had, otherwise the
/// trainers if they are new. Nobody, if all have been planned before.
std::vector<SessionId> PlanRule::Newcomers() const {
  const Group* newest = nullptr;
  for (const Worker& worker : roster_.workers()) {  // By session, so as they came.
    const Group& group = *roster_.FindGroup(worker.group);
    const bool planned = state_.groups.Of(group.id).in_full_plan;
    if (!IsMember(worker) || planned || (group.id == kTrainers && newest != nullptr)) continue;
    newest = &group;
  }
  return newest == nullptr ? std::vector<SessionId>{} : newest->ranks;
}

// --- Its members get ready ------------------------------------------------------------------------------

void PlanRule::OnPrepared(const Worker& worker, const protocol::Prepared& message) {
  if (message.epoch != state_.epoch || state_.phase != PlanPhase::kPreparing || !IsMember(worker)) return;
  WorkerChange(roster_, worker).SetPrepared(message.epoch);
  if (roster_.unprepared() != 0) return;
  state_.phase = PlanPhase::kPrepared;
  out_.Disarm(TimerKind::kPrepare);
  for (const Group& group : roster_.groups()) {
    if (state_.partial || state_.groups.Of(group.id).in_plan != state_.epoch) continue;
    roster_.touched().Add(group.id);
    state_.groups.Edit(group.id).failed_prepares = 0;
  }
  out_.Log(LogLevel::kInfo, "epoch ", state_.epoch, " is prepared: all connections are made");
}

void PlanRule::Void(Duration delay) {
  Drop();
  state_.stale = true;
  state_.delay = true;
  out_.Arm(TimerKind::kPlan, 0, delay);
}

void PlanRule::Blame(const Worker& culprit, const Status& reason, bool may_pass) {
  if (rules_.repair->IsPlanned()) return rules_.repair->PlanFailed(reason);
  const GroupId id = culprit.group;
  const SessionId session = culprit.session;
  roster_.touched().Add(id);
  GroupPlan& group = state_.groups.Edit(id);
  if (group.failed_epoch == state_.epoch) return;  // Counted already.
  group.failed_epoch = state_.epoch;
  GroupChange(roster_, id).SetLastError(reason);
  rules_.last_error = reason;
  out_.Log(LogLevel::kWarning, "epoch ", state_.epoch, " cannot be prepared: ", reason.message());
  // Half a lease lets the loss of a process that caused this become known first.
  Void(config_.lease / 2);
  group.failed_prepares = std::min<uint8_t>(group.failed_prepares + 1, kMostFailedPrepares);
  if (group.failed_prepares < kMaxFailedPrepares) return;
  if (may_pass) {  // The others go on without it.
    group.left_out = true;
    return out_.Arm(TimerKind::kRetry, id, RetryAfter(config_.lease, group.failed_prepares));
  }
  group.failed_prepares = 0;
  rules_.membership->Refuse(id == kTrainers ? std::vector{session} : MembersOf(*roster_.FindGroup(id)),
                            reason);
}

void PlanRule::OnRetryTimer(GroupId id) {
  if (roster_.FindGroup(id) == nullptr) return;
  roster_.touched().Add(id);
  state_.groups.Edit(id).left_out = false;
}

void PlanRule::OnPrepareFailed(const Worker& worker, const protocol::Failed& message) {
  const bool current =
      state_.phase == PlanPhase::kPreparing || (state_.phase == PlanPhase::kNone && state_.delay);
  if (message.update.term != config_.term || message.update.epoch != state_.epoch || !current ||
      !IsMember(worker))
    return;
  const Worker* culprit = &worker;
  if (message.destination >= 0 && static_cast<size_t>(message.destination) < state_.destinations.size()) {
    culprit = roster_.Find(state_.destinations[static_cast<size_t>(message.destination)]);
    if (culprit == nullptr) return;  // Lost meanwhile: the reason is known.
  }
  const std::string text = TextOf(roster_, worker);
  const std::string who =
      culprit == &worker ? text : StrCat(text, " cannot reach ", TextOf(roster_, *culprit));
  Blame(*culprit, Error(message.reason.code(), who, ": ", message.reason.message()),
        culprit != &worker && MayPass(message.reason.code()));
}

void PlanRule::OnPrepareTimer() {
  if (state_.phase != PlanPhase::kPreparing) return;
  // Inference ranks wait for trainers, so a trainer that has said nothing is the likelier cause.
  const Worker* late = nullptr;
  for (const Worker& worker : roster_.workers()) {
    if (!IsMember(worker) || worker.prepared == state_.epoch) continue;
    if (late == nullptr || (worker.group == kTrainers && late->group != kTrainers)) late = &worker;
  }
  if (late == nullptr) {  // Those who were late are lost: another plan is due.
    state_.phase = PlanPhase::kNone;
    return;
  }
  Blame(*late,
        Error(Code::kTimedOut, TextOf(roster_, *late), " has not made its connections within ",
              Seconds(config_.timeout),
              " s (setting timeout); see its log, and the firewall between the hosts"),
        /*may_pass=*/false);
}

}  // namespace weightcast::control
