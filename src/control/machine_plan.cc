#include <algorithm>
#include <utility>

#include "control/machine.h"

// When to plan, and how the members of a plan get ready.
namespace weightcast::control {
namespace {

/// Workers that start together join within this time; a plan waits for it.
constexpr Duration kSettle = std::chrono::milliseconds(50);
/// Preparations that may fail in a row because of one engine or trainer.
constexpr uint8_t kMaxFailedPrepares = 3;
/// Beyond this the time between two tries does not grow.
constexpr uint8_t kMostFailedPrepares = 8;

/// Whoever did not answer, or had no room, may answer later. An answer that refuses would come again.
bool MayPass(Code code) {
  return code == Code::kTimedOut || code == Code::kUnavailable || code == Code::kPeerDead ||
         code == Code::kExhausted || code == Code::kCancelled;
}

/// Two leases, then twice as long each time, up to 16.
Duration RetryAfter(Duration lease, uint8_t failed) {
  return 2 * lease * (1 << (failed - kMaxFailedPrepares));
}

}  // namespace

bool Machine::Plannable(const Group& group) const { return Whole(group) && !group.left_out; }

bool Machine::PlanPossible() const {
  if (!Whole(s_.roster.trainers())) return false;
  uint32_t needed = s_.plan.ever ? 1 : std::max<uint32_t>(1, config_.min_engines);
  for (const Group& group : s_.roster.groups())
    if (group.id != kTrainers && Plannable(group) && --needed == 0) return true;
  return false;
}

void Machine::Replan() {
  PlanState& plan = s_.plan;
  if (!plan.stale) {
    plan.stale = std::ranges::any_of(s_.roster.Touched(), [&](GroupId id) {
      const Group& group = *FindGroup(id);
      return id != kTrainers && group.in_plan != plan.epoch && Plannable(group);
    });
  }
  if (!plan.stale || plan.phase == PlanPhase::kPlanning) return;
  if (!PlanPossible()) {
    if (plan.phase == PlanPhase::kPreparing) Disarm(TimerKind::kPrepare);
    plan.phase = PlanPhase::kNone;
    return;
  }
  if (plan.delay) return;
  plan.delay = true;
  Arm(TimerKind::kPlan, 0, std::min(kSettle, config_.lease / 10));
}

void Machine::StartPlan() {
  PlanState& plan = s_.plan;
  if (s_.update || !plan.stale || plan.phase == PlanPhase::kPlanning || !PlanPossible()) return;
  if (OpenFromPeers()) return;
  if (plan.phase == PlanPhase::kPreparing) Disarm(TimerKind::kPrepare);
  s_.roster.BeginEpoch(++plan.epoch);
  plan.phase = PlanPhase::kPlanning;
  plan.stale = plan.partial = plan.from_engines = false;

  std::vector<const Group*> engines;
  for (const Group& group : s_.roster.groups())
    if (group.id != kTrainers && Plannable(group)) engines.push_back(&group);
  std::sort(engines.begin(), engines.end(), [](const Group* a, const Group* b) { return a->name < b->name; });
  const auto members = [&](const Group& group) {
    Change(group).in_plan = plan.epoch;
    for (const SessionId session : group.ranks) Change(*Find(session))->planned = plan.epoch;
    return group.ranks;
  };
  MakePlan action{
      .epoch = plan.epoch, .sources = members(s_.roster.trainers()), .from_engines = false, .engines = {}};
  plan.sources = action.sources;
  plan.destinations.clear();
  for (const Group* engine : engines) {
    action.engines.push_back(members(*engine));
    plan.destinations.insert(plan.destinations.end(), action.engines.back().begin(),
                             action.engines.back().end());
  }
  actions_.push_back(std::move(action));
}

void Machine::On(const PlanMade& event) {
  PlanState& plan = s_.plan;
  if (event.epoch != plan.epoch || plan.phase != PlanPhase::kPlanning) return;
  if (plan.stale) {  // Something has changed meanwhile.
    plan.phase = PlanPhase::kNone;
    Advance();
    return;
  }
  plan.phase = PlanPhase::kPreparing;
  plan.ever = plan.ever || !plan.partial;
  for (const Group& listed : s_.roster.groups()) {
    Group& group = Change(listed);
    const bool planned =
        Complete(group) && AnyMember(group, [&](const Worker& worker) { return InPlan(worker); });
    group.planned = planned || (group.planned && plan.partial);
    group.in_full_plan = group.in_full_plan || (planned && !plan.partial);
  }
  for (const Worker& worker : s_.roster.workers())
    if (worker.group == kTrainers && worker.connected && InPlan(worker))
      JoinRun(worker.rank, worker.incarnation);
  actions_.push_back(HandOut{event.epoch});
  Arm(TimerKind::kPrepare, 0, config_.timeout);
  Advance();
}

void Machine::On(const PlanFailed& event) {
  PlanState& plan = s_.plan;
  if (event.epoch != plan.epoch || plan.phase != PlanPhase::kPlanning) return;
  plan.phase = PlanPhase::kNone;
  const bool outdated = plan.stale;
  plan.stale = true;
  if (Repairing()) {
    if (!outdated) RepairFailed(event.reason);
  } else if (!outdated) {
    Log(LogLevel::kError, "plan: epoch ", event.epoch, " is not possible: ", event.reason.message());
    s_.last_error = event.reason;
    const std::vector<SessionId> concerned = event.concerned.empty() ? Newcomers() : event.concerned;
    if (concerned.empty()) VoidPlan(config_.lease);  // There was room for the same plan before.
    RefuseWorkers(concerned, event.reason);
  }
  Advance();
}

/// Whose arrival made a plan too large: the newest engine that no plan of everybody has had, otherwise the
/// trainers if they are new. Nobody, if all have been planned before.
std::vector<SessionId> Machine::Newcomers() const {
  const Group* newest = nullptr;
  for (const Worker& worker : s_.roster.workers()) {  // By session, so as they came.
    const Group& group = *FindGroup(worker.group);
    if (!InPlan(worker) || group.in_full_plan || (group.id == kTrainers && newest != nullptr)) continue;
    newest = &group;
  }
  return newest == nullptr ? std::vector<SessionId>{} : newest->ranks;
}

void Machine::OnPrepared(const Worker& worker, const protocol::Prepared& message) {
  PlanState& plan = s_.plan;
  if (message.epoch != plan.epoch || plan.phase != PlanPhase::kPreparing || !InPlan(worker)) return;
  Change(worker)->prepared = message.epoch;
  if (s_.roster.unprepared() != 0) return;
  plan.phase = PlanPhase::kPrepared;
  Disarm(TimerKind::kPrepare);
  if (!plan.partial)
    for (const Group& group : s_.roster.groups())
      if (group.in_plan == plan.epoch) Change(group).failed_prepares = 0;
  Log(LogLevel::kInfo, "epoch ", plan.epoch, " is prepared: all connections are made");
}

void Machine::VoidPlan(Duration delay) {
  PlanState& plan = s_.plan;
  if (plan.phase == PlanPhase::kPreparing) Disarm(TimerKind::kPrepare);
  plan.phase = PlanPhase::kNone;
  plan.stale = true;
  plan.delay = true;
  Arm(TimerKind::kPlan, 0, delay);
}

void Machine::BlamePreparation(GroupId id, SessionId culprit, const Status& reason, bool may_pass) {
  if (Repairing()) return RepairFailed(reason);
  Group& group = ChangeGroup(id);
  if (group.failed_epoch == s_.plan.epoch) return;  // Counted already.
  group.failed_epoch = s_.plan.epoch;
  group.last_error = reason;
  s_.last_error = reason;
  Log(LogLevel::kWarning, "epoch ", s_.plan.epoch, " cannot be prepared: ", reason.message());
  // Half a lease lets the loss of a process that caused this become known first.
  VoidPlan(config_.lease / 2);
  group.failed_prepares = std::min<uint8_t>(group.failed_prepares + 1, kMostFailedPrepares);
  if (group.failed_prepares < kMaxFailedPrepares) return;
  if (may_pass) {  // The others go on without it.
    group.left_out = true;
    return Arm(TimerKind::kRetry, id, RetryAfter(config_.lease, group.failed_prepares));
  }
  group.failed_prepares = 0;
  if (id == kTrainers) {
    RefuseWorker(culprit, reason);
  } else {
    RefuseGroup(id, reason);
  }
}

void Machine::OnRetryTimer(GroupId id) {
  if (const Group* group = FindGroup(id)) Change(*group).left_out = false;
}

/// What is known of how it can be reached holds for its present ranks.
void Machine::ForgetFailedPrepares(Group& group) {
  group.failed_prepares = 0;
  if (std::exchange(group.left_out, false)) Disarm(TimerKind::kRetry, group.id);
}

void Machine::OnPrepareFailed(const Worker& worker, const protocol::Failed& message) {
  const PlanState& plan = s_.plan;
  const bool current = plan.phase == PlanPhase::kPreparing || (plan.phase == PlanPhase::kNone && plan.delay);
  if (message.update.term != config_.term || message.update.epoch != plan.epoch || !current ||
      !InPlan(worker))
    return;
  const Worker* culprit = &worker;
  if (message.destination >= 0 && static_cast<size_t>(message.destination) < plan.destinations.size()) {
    culprit = Find(plan.destinations[static_cast<size_t>(message.destination)]);
    if (culprit == nullptr) return;  // Lost meanwhile: the reason is known.
  }
  const std::string who =
      culprit == &worker ? TextOf(worker) : StrCat(TextOf(worker), " cannot reach ", TextOf(*culprit));
  BlamePreparation(culprit->group, culprit->session,
                   {message.reason.code(), StrCat(who, ": ", message.reason.message())},
                   culprit != &worker && MayPass(message.reason.code()));
}

void Machine::OnPrepareTimer() {
  if (s_.plan.phase != PlanPhase::kPreparing) return;
  // Inference ranks wait for trainers, so a trainer that has said nothing is the likelier cause.
  const Worker* late = nullptr;
  for (const Worker& worker : s_.roster.workers()) {
    if (!InPlan(worker) || worker.prepared == s_.plan.epoch) continue;
    if (late == nullptr || (worker.group == kTrainers && late->group != kTrainers)) late = &worker;
  }
  if (late == nullptr) {  // Those who were late are lost: another plan is due.
    s_.plan.phase = PlanPhase::kNone;
    return;
  }
  BlamePreparation(late->group, late->session,
                   {Code::kTimedOut,
                    StrCat(TextOf(*late), " has not made its connections within ", Seconds(config_.timeout),
                           " s (timeout); see its log, and the firewall between the hosts")},
                   /*may_pass=*/false);
}

}  // namespace weightcast::control
