#include <algorithm>
#include <utility>

#include "tests/reference/machine.h"

// Other holders of an update's bytes: an update whose source is lost is finished from somebody else who has
// them, and engines that lack what others serve get it from those.
namespace weightcast::reference {
namespace {

/// Sources that an update may lose before it is given up.
constexpr uint32_t kMaxRepairs = 8;

Holders Next(Holders holders) { return static_cast<Holders>(static_cast<uint8_t>(holders) + 1); }

}  // namespace

// --- Who has the bytes ----------------------------------------------------------------------------------

bool Machine::Holds(const Group& group, const Version& version) const {
  if (group.id == kTrainers || !Whole(group)) return false;
  const bool shares = std::all_of(s_.workers.begin(), s_.workers.end(), [&](const Worker& worker) {
    const bool refuses = s_.update && (Contains(s_.update->avoided, worker.session) ||
                                       Contains(s_.update->unable, worker.session));
    return worker.group != group.id ||
           (worker.shares && worker.holds == version && !worker.fencing && !refuses);
  });
  if (!shares) return false;
  if (s_.update && s_.update->version == version) {
    for (const Target& target : s_.update->targets) {
      if (target.group == group.id)
        return target.step >= EngineStep::kReady && target.step != EngineStep::kOut;
    }
  }
  return EngineVersion(group) == version;
}

Version Machine::NewestServed() const {
  Version newest;
  for (const Group& group : s_.groups)
    if (group.id != kTrainers) newest = protocol::LaterOf(newest, EngineVersion(group));
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
      for (const Group& group : s_.groups) {
        if (!Holds(group, update.version)) continue;
        const std::vector<SessionId> ranks = RanksOf(group);
        sessions.insert(sessions.end(), ranks.begin(), ranks.end());
      }
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
  const auto lacks = [](const Target& target) { return target.step < EngineStep::kReady; };
  if (std::none_of(update.targets.begin(), update.targets.end(), lacks)) return;
  update.loss = reason;
  update.holders = Holders::kTrainersLeft;
  update.repair_epoch = 0;  // Whatever was planned for a repair is not enough any more.
  bool anybody = false;
  for (const Holders holders : {Holders::kTrainersLeft, Holders::kEngines, Holders::kAllTrainers})
    anybody = anybody || !SessionsOf(holders).empty();
  if (!anybody || update.repairs >= kMaxRepairs)
    return only == nullptr ? AbortAll(reason) : EngineOut(*only, reason);
  for (Target& target : update.targets) {
    if (!lacks(target)) continue;
    HasTakenParts(target) ? EngineOut(target, reason) : MakeSourceless(target);
  }
  if (s_.plan.partial) s_.plan.stale = true;
  LogAndCount("control.repairs", LogLevel::kWarning, protocol::ToString(update.id),
              " goes on from other holders: ", reason.message());
}

/// A plan for what it lacks would have to be one for the parts that are left.
bool Machine::HasTakenParts(const Target& target) const {
  const auto has = [&](const Receiver& rank) {
    return rank.group == target.group && rank.step >= RankStep::kReady;
  };
  const auto& ranks = s_.update->receivers;
  return target.part > 0 || (!IsLastPart(target) && std::any_of(ranks.begin(), ranks.end(), has));
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
  target.step = EngineStep::kSourceless;
  for (Receiver& rank : s_.update->receivers) {
    Worker* worker = Find(rank.session);
    if (rank.group != target.group || rank.step >= RankStep::kReady || worker == nullptr) continue;
    rank.step = RankStep::kAsked;
    rank.grants.clear();
    worker->fencing = rank.id;
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
  const auto sourceless = [](const Target& target) { return target.step == EngineStep::kSourceless; };
  if (std::none_of(update.targets.begin(), update.targets.end(), sourceless)) return;
  const bool planned = update.repair_epoch == plan.epoch && !plan.stale;
  if (planned && plan.phase == PlanPhase::kPrepared) return OpenAttempt();
  if (plan.phase == PlanPhase::kPlanning || (planned && plan.phase == PlanPhase::kPreparing)) return;
  for (const Receiver& rank : update.receivers) {
    const Worker* worker = Find(rank.session);
    const bool settled = worker == nullptr || (!worker->fencing && worker->landed);
    if (!settled && sourceless(*TargetOf(rank.group))) return;
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
  ++plan.epoch;
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
    const auto& ranks = action.engines.emplace_back(RanksOf(*FindGroup(target.group)));
    plan.destinations.insert(plan.destinations.end(), ranks.begin(), ranks.end());
  }
  for (const auto* members : {&plan.sources, &plan.destinations})
    for (const SessionId session : *members)
      if (Worker* worker = Find(session)) worker->planned = plan.epoch;
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
  for (const Group& group : s_.groups) {
    const bool tired = group.tried == version && (group.at_fault || group.tries >= kMaxTries);
    const bool hangs = group.steering.overdue;
    const bool beyond = EngineVersion(group) == version || TakesBack(group, version);
    if (group.id == kTrainers || !Whole(group) || tired || hangs || beyond) continue;
    if (!IsFencing(group)) lacking.push_back(&group);
  }
  return lacking;
}

bool Machine::OpenFromPeers() {
  const bool publishing = AnyWaiting() && CommonOffer() >= 0;
  const Version version = NewestServed();
  if (s_.update || publishing || version.number < 0 || s_.plan.phase == PlanPhase::kPlanning) return false;
  const auto holders = std::count_if(s_.groups.begin(), s_.groups.end(),
                                     [&](const Group& group) { return Holds(group, version); });
  std::vector<const Group*> lacking = Lacking(version);
  if (holders == 0 || lacking.empty()) return false;
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
  for (const Worker& worker : s_.workers) {
    const bool has = worker.hold && protocol::VersionOf(s_.run, worker.offered) == version;
    if (worker.group == kTrainers && has) update.trainers.push_back(worker.session);
  }
  for (const Group* group : lacking) {
    update.targets.push_back({.group = group->id, .step = EngineStep::kSourceless, .reason = {}});
    for (const Worker& worker : s_.workers) {
      if (worker.group == group->id)
        update.receivers.push_back({.session = worker.session, .group = group->id, .rank = worker.rank});
    }
    LogAndCount("control.engines_refilled", LogLevel::kInfo, "engine ", group->name, " gets version ",
                ToString(version), " from engines that serve it");
  }
  s_.update = std::move(update);
  for (const Target& target : s_.update->targets) {
    if (!FindGroup(target.group)->grant_timer) Arm(TimerKind::kStep, target.group, LimitOf(target));
  }
  TryRepair();
  return true;
}

}  // namespace weightcast::reference
