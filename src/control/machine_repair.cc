#include <algorithm>
#include <utility>

#include "control/machine.h"

// Other holders of an update's bytes: an update whose source is lost is finished from somebody else who has
// them, and engines that lack what others serve get it from those.
namespace weightcast::control {
namespace {

/// Sources that an update may lose before it is given up.
constexpr uint32_t kMaxRepairs = 8;

Holders Next(Holders holders) { return static_cast<Holders>(static_cast<uint8_t>(holders) + 1); }

}  // namespace

// --- Who has the bytes ----------------------------------------------------------------------------------

bool Machine::Holds(const Group& group, const Version& version) const {
  if (group.id == kTrainers || !Whole(group)) return false;
  const bool keeps = AnyMember(group, [&](const Worker& worker) {
    const bool refuses = s_.update && (Contains(s_.update->avoided, worker.session) ||
                                       Contains(s_.update->unable, worker.session));
    const bool shares = worker.shares && worker.holds == version && !worker.fencing && !refuses;
    return !shares;
  });
  if (keeps) return false;
  if (s_.update && s_.update->version == version) {
    if (const Target* target = s_.update->TargetOf(group.id))
      return target->step >= EngineStep::kReady && target->step != EngineStep::kOut;
  }
  return group.served == version;
}

Version Machine::NewestServed() const {
  Version newest;
  for (const Group& group : s_.roster.groups())
    if (group.id != kTrainers) newest = protocol::LaterOf(newest, group.served);
  return newest;
}

std::vector<SessionId> Machine::SessionsOf(Holders holders) const {
  const UpdateState& update = *s_.update;
  std::vector<SessionId> sessions;
  switch (holders) {
    case Holders::kAllTrainers:
      if (update.avoided.empty() && update.fresh) break;  // Tried already.
      [[fallthrough]];
    case Holders::kTrainersLeft:
      for (const SessionId trainer : update.trainers) {
        const bool avoided = holders == Holders::kTrainersLeft && Contains(update.avoided, trainer);
        if (!avoided && !Contains(update.unable, trainer)) sessions.push_back(trainer);
      }
      break;
    case Holders::kEngines:
      for (const Group& group : s_.roster.groups())
        if (Holds(group, update.version))
          sessions.insert(sessions.end(), group.ranks.begin(), group.ranks.end());
      break;
    case Holders::kNobody:
      break;
  }
  return sessions;
}

// --- A source is lost -----------------------------------------------------------------------------------

void Machine::LoseSource(const Worker& lost, const Status& reason, Target* only) {
  UpdateState& update = *s_.update;
  if (only == nullptr) {
    update.unable.push_back(lost.session);
  } else if (!Contains(update.avoided, lost.session)) {
    update.avoided.push_back(lost.session);
  }
  // One plan at a time: whoever lacks bytes is planned anew with them.
  if (update.Before(EngineStep::kReady) == 0) return;
  update.loss = reason;
  update.holders = Holders::kTrainersLeft;
  update.repair_epoch = 0;  // Whatever was planned for a repair is not enough any more.
  bool anybody = false;
  for (const Holders holders : {Holders::kTrainersLeft, Holders::kEngines, Holders::kAllTrainers})
    anybody = anybody || !SessionsOf(holders).empty();
  if (!anybody || update.repairs >= kMaxRepairs)
    return only == nullptr ? AbortAll(reason) : EngineOut(*only, reason);
  for (Target& target : update.targets) {
    if (target.step >= EngineStep::kReady) continue;
    HasTakenParts(target) ? EngineOut(target, reason) : MakeSourceless(target);
  }
  if (s_.plan.partial) s_.plan.stale = true;
  LogAndCount("control.repairs", LogLevel::kWarning, protocol::ToString(update.id),
              " goes on from other holders: ", reason.message());
}

/// A plan for what it lacks would have to be one for the parts that are left.
bool Machine::HasTakenParts(const Target& target) const {
  const auto has = [](const Receiver& rank) { return rank.step >= RankStep::kReady; };
  return target.part > 0 || (!IsLastPart(target) && std::ranges::any_of(s_.update->RanksOf(target), has));
}

/// What an engine that is out has is its own affair: it gives no more.
void Machine::LosePeerSource(const Target& out, const Status& reason) {
  if (!s_.plan.from_engines || s_.update->released) return;
  for (const SessionId session : s_.plan.sources) {
    const Worker* peer_source = Find(session);
    if (peer_source != nullptr && peer_source->group == out.group) LoseSource(*peer_source, reason);
  }
}

/// Ranks that have every byte keep them. The user's calls of the others wait on.
void Machine::MakeSourceless(Target& target) {
  if (target.step == EngineStep::kSourceless) return;
  StopSenders(target);
  SetStep(target, EngineStep::kSourceless);
  for (Receiver& rank : s_.update->RanksOf(target)) {
    const Worker* worker = Find(rank.session);
    if (rank.step >= RankStep::kReady || worker == nullptr) continue;
    s_.update->Move(rank, RankStep::kAsked);
    rank.grants.clear();
    Change(*worker)->fencing = rank.id;
    Tell(rank.session, protocol::Abort{.update = rank.id,
                                       .reason = Status::Ok(),
                                       .version = s_.update->version,
                                       .started = rank.started});
  }
  DisarmStep(target.group);
  Arm(TimerKind::kStep, target.group, LimitOf(target));
}

// --- The repair -----------------------------------------------------------------------------------------

void Machine::TryRepair() {
  UpdateState& update = *s_.update;
  PlanState& plan = s_.plan;
  if (update.At(EngineStep::kSourceless) == 0) return;
  const bool planned = update.repair_epoch == plan.epoch && !plan.stale;
  if (planned && plan.phase == PlanPhase::kPrepared) return OpenAttempt();
  if (plan.phase == PlanPhase::kPlanning || (planned && plan.phase == PlanPhase::kPreparing)) return;
  for (const Target& target : update.targets) {
    if (target.step != EngineStep::kSourceless) continue;
    for (const Receiver& rank : update.RanksOf(target)) {
      const Worker* worker = Find(rank.session);
      const bool settled = worker == nullptr || (!worker->fencing && worker->landed);
      if (!settled) return;
    }
  }
  for (; update.holders != Holders::kNobody; update.holders = Next(update.holders)) {
    const std::vector<SessionId> sources = SessionsOf(update.holders);
    if (!sources.empty()) return MakeRepairPlan(sources, update.holders == Holders::kEngines);
  }
  const Status nobody(Code::kUnavailable, StrCat("no running worker has the bytes of version ",
                                                 ToString(update.version), " any more; publish again"));
  AbortAll(update.loss.ok() ? nobody : update.loss);
}

void Machine::MakeRepairPlan(std::vector<SessionId> sources, bool from_engines) {
  PlanState& plan = s_.plan;
  if (plan.phase == PlanPhase::kPreparing) Disarm(TimerKind::kPrepare);
  s_.roster.BeginEpoch(++plan.epoch);
  plan.phase = PlanPhase::kPlanning;
  plan.stale = false;
  plan.partial = true;
  plan.from_engines = from_engines;
  plan.sources = std::move(sources);
  plan.destinations.clear();
  s_.update->repair_epoch = plan.epoch;
  MakePlan action{.epoch = plan.epoch, .sources = plan.sources, .from_engines = from_engines, .engines = {}};
  for (const Target& target : s_.update->targets) {
    if (target.step != EngineStep::kSourceless) continue;
    const auto& ranks = action.engines.emplace_back(FindGroup(target.group)->ranks);
    plan.destinations.insert(plan.destinations.end(), ranks.begin(), ranks.end());
  }
  for (const auto* members : {&plan.sources, &plan.destinations})
    for (const SessionId session : *members)
      if (const Worker* worker = Find(session)) Change(*worker)->planned = plan.epoch;
  actions_.push_back(std::move(action));
}

void Machine::RepairFailed(const Status& reason) {
  UpdateState& update = *s_.update;
  Log(LogLevel::kWarning, protocol::ToString(update.id), " cannot go on from ",
      s_.plan.from_engines ? "engines" : "trainers", " that are left: ", reason.message());
  if (s_.plan.phase == PlanPhase::kPreparing) Disarm(TimerKind::kPrepare);
  s_.plan.phase = PlanPhase::kNone;
  update.repair_epoch = 0;
  if (update.loss.ok()) update.loss = reason;
  update.holders = Next(update.holders);
}

/// Asks the ranks that lack bytes for grants to the sources of the repair's plan.
void Machine::OpenAttempt() {
  UpdateState& update = *s_.update;
  update.repair_epoch = 0;
  ++update.repairs;
  update.id = {
      .term = config_.term, .epoch = s_.plan.epoch, .sequence = s_.sequence, .attempt = ++s_.attempt};
  AddSenders();
  for (uint32_t number = 0; number < s_.plan.destinations.size(); ++number) {
    Receiver& rank = *ReceiverOf(s_.plan.destinations[number]);
    const bool lacks = TargetOf(rank.group)->step == EngineStep::kSourceless;
    if (!lacks || rank.step >= RankStep::kReady) continue;
    rank.destination = number;
  }
  for (Target& target : update.targets) {
    if (target.step == EngineStep::kSourceless) BeginGrants(target);
  }
}

// --- Engines that come late -----------------------------------------------------------------------------

std::vector<const Group*> Machine::Lacking(const Version& version) const {
  std::vector<const Group*> lacking;
  for (const Group& group : s_.roster.groups()) {
    if (group.id == kTrainers || !Whole(group) || group.served == version) continue;
    const bool tired = group.tried == version && (group.at_fault || group.tries >= kMaxTries);
    const bool hangs = group.steering.overdue;
    if (tired || hangs || TakesBack(group, version)) continue;
    if (!IsFencing(group)) lacking.push_back(&group);
  }
  return lacking;
}

bool Machine::OpenFromPeers() {
  const bool publishing = AnyWaiting() && CommonOffer() >= 0;
  if (s_.roster.quiet() || s_.update || publishing || s_.plan.phase == PlanPhase::kPlanning) return false;
  const Version version = NewestServed();
  std::vector<const Group*> lacking;
  if (version.number >= 0) lacking = Lacking(version);
  const auto holders =
      lacking.empty() ? 0 : std::ranges::count_if(s_.roster.groups(), [&](const Group& group) {
        return Holds(group, version);
      });
  if (holders == 0) {
    s_.roster.NoteQuiet();
    return false;
  }
  // Those who are known to be late come last.
  std::stable_partition(lacking.begin(), lacking.end(),
                        [](const Group* group) { return !group->grant_timer; });
  // Whoever has got it gives too: no engine gives to more than one at a time.
  lacking.resize(std::min(lacking.size(), static_cast<size_t>(holders)));

  s_.sequence = std::max<uint64_t>(s_.sequence, 1);  // 0 stands for what is said of preparation.
  UpdateState update;
  update.id = {
      .term = config_.term, .epoch = s_.plan.epoch, .sequence = s_.sequence, .attempt = ++s_.attempt};
  update.version = version;
  update.holders = Holders::kEngines;
  for (const Worker& worker : s_.roster.workers()) {
    const bool has = worker.hold && protocol::VersionOf(s_.run, worker.offered) == version;
    if (worker.group == kTrainers && has) update.trainers.push_back(worker.session);
  }
  for (const Group* group : lacking) {
    update.targets.push_back({.group = group->id, .step = EngineStep::kSourceless, .reason = {}});
    for (const SessionId session : s_.roster.MembersOf(*group))
      update.receivers.push_back({.session = session, .group = group->id, .rank = Find(session)->rank});
    LogAndCount("control.engines_refilled", LogLevel::kInfo, "engine ", group->name, " gets version ",
                ToString(version), " from engines that serve it");
  }
  update.Index();
  s_.update = std::move(update);
  s_.roster.TouchAll();
  for (const Target& target : s_.update->targets) {
    if (!FindGroup(target.group)->grant_timer) Arm(TimerKind::kStep, target.group, LimitOf(target));
  }
  TryRepair();
  return true;
}

}  // namespace weightcast::control
