#include "control/repair_rule.h"

#include <algorithm>
#include <array>
#include <utility>

#include "control/repair_state.h"
#include "control/roster_facts.h"

namespace weightcast::control {
namespace {

/// Sources that an update may lose before it is given up.
constexpr uint32_t kMaxRepairs = 8;

Holders Next(Holders holders) { return static_cast<Holders>(static_cast<uint8_t>(holders) + 1); }

}  // namespace

void RepairRule::Open(Holders first) {
  state_ = {};
  state_.holders = first;
}

void RepairRule::Close() { state_ = {}; }

bool RepairRule::IsPlanned() const { return state_.epoch != 0; }

// --- Who has the bytes ----------------------------------------------------------------------------------

bool RepairRule::Holds(const Group& group, const Version& version) const {
  if (group.id == kTrainers || !IsWhole(group)) return false;
  const bool keeps = AnyMember(roster_, group, [&](const Worker& worker) {
    const bool refuses = Contains(state_.avoided, worker.session) || Contains(state_.unable, worker.session);
    return !worker.shares || worker.holds != version || worker.fencing || refuses;
  });
  if (keeps) return false;
  if (rules_.updates->open() && rules_.updates->update().version == version) {
    if (const EngineProgress* engine = rules_.engines->Of(group.id))
      return engine->step >= EngineStep::kReady && engine->step != EngineStep::kOut;
  }
  return group.served == version;
}

Version RepairRule::NewestServed() const {
  Version newest;
  for (const Group& group : roster_.groups())
    if (group.id != kTrainers) newest = protocol::LaterOf(newest, group.served);
  return newest;
}

std::vector<SessionId> RepairRule::TrainersOf(Holders holders) const {
  const UpdateFacts update = rules_.updates->update();
  std::vector<SessionId> sessions;
  if (holders == Holders::kAllTrainers && state_.avoided.empty() && update.fresh)
    return sessions;  // Tried already.
  for (const SessionId trainer : update.trainers) {
    const bool avoided = holders == Holders::kTrainersLeft && Contains(state_.avoided, trainer);
    if (!avoided && !Contains(state_.unable, trainer)) sessions.push_back(trainer);
  }
  return sessions;
}

std::vector<SessionId> RepairRule::SessionsOf(Holders holders) const {
  if (holders == Holders::kNobody) return {};
  if (holders != Holders::kEngines) return TrainersOf(holders);
  std::vector<SessionId> sessions;
  for (const Group& group : roster_.groups())
    if (Holds(group, rules_.updates->update().version))
      sessions.insert(sessions.end(), group.ranks.begin(), group.ranks.end());
  return sessions;
}

bool RepairRule::AnyHolder() const {
  return std::ranges::any_of(std::array{Holders::kTrainersLeft, Holders::kEngines, Holders::kAllTrainers},
                             [this](Holders holders) { return !SessionsOf(holders).empty(); });
}

// --- A source is lost -----------------------------------------------------------------------------------

void RepairRule::LoseSource(const Worker& lost, const Status& reason, std::optional<GroupId> only) {
  if (!only) {
    state_.unable.push_back(lost.session);
  } else if (!Contains(state_.avoided, lost.session)) {
    state_.avoided.push_back(lost.session);
  }
  // One plan at a time: engines that lack bytes are planned again with them.
  if (rules_.engines->counts().Before(EngineStep::kReady) == 0) return;
  state_.loss = reason;
  state_.holders = Holders::kTrainersLeft;
  state_.epoch = 0;  // Whatever was planned for a repair is not enough any more.
  if (!AnyHolder() || state_.repairs >= kMaxRepairs)
    return only ? rules_.engines->Out(*only, reason) : rules_.updates->Abort(reason);
  rules_.engines->LoseSources(reason);
  rules_.planning->EndPartial();
  out_.LogAndCount("control.repairs", LogLevel::kWarning, protocol::ToString(rules_.updates->update().id),
                   " goes on from other holders: ", reason.message());
}

void RepairRule::EngineOut(GroupId group, const Status& reason) {
  if (!rules_.planning->plan().from_engines || rules_.updates->update().released) return;
  for (const SessionId session : rules_.planning->plan().sources) {
    const Worker* peer_source = roster_.Find(session);
    if (peer_source != nullptr && peer_source->group == group) LoseSource(*peer_source, reason, std::nullopt);
  }
}

// --- The repair -----------------------------------------------------------------------------------------

void RepairRule::Advance() {
  if (rules_.engines->counts().At(EngineStep::kSourceless) == 0) return;
  const PlanFacts plan = rules_.planning->plan();
  const bool planned = state_.epoch == plan.epoch && !plan.stale;
  if (planned && plan.phase == PlanPhase::kPrepared) return BeginAttempt();
  if (plan.phase == PlanPhase::kPlanning || (planned && plan.phase == PlanPhase::kPreparing)) return;
  std::vector<GroupId> engines = rules_.engines->GroupsAt(EngineStep::kSourceless);
  if (!std::ranges::all_of(engines, [this](GroupId engine) { return rules_.ranks->IsSettled(engine); }))
    return;
  for (; state_.holders != Holders::kNobody; state_.holders = Next(state_.holders)) {
    std::vector<SessionId> sources = SessionsOf(state_.holders);
    if (sources.empty()) continue;
    const bool from_engines = state_.holders == Holders::kEngines;
    state_.epoch = rules_.planning->PlanRepair(std::move(sources), from_engines, engines);
    return;
  }
  const Status nobody = Error(Code::kUnavailable, "no running worker has the bytes of version ",
                              ToString(rules_.updates->update().version), " any more; publish again");
  rules_.updates->Abort(state_.loss.ok() ? nobody : state_.loss);
}

void RepairRule::PlanFailed(const Status& reason) {
  out_.Log(LogLevel::kWarning, protocol::ToString(rules_.updates->update().id), " cannot go on from ",
           rules_.planning->plan().from_engines ? "engines" : "trainers",
           " that are left: ", reason.message());
  rules_.planning->Drop();
  state_.epoch = 0;
  if (state_.loss.ok()) state_.loss = reason;
  state_.holders = Next(state_.holders);
}

void RepairRule::BeginAttempt() {
  state_.epoch = 0;
  ++state_.repairs;
  rules_.updates->BeginAttempt();
  rules_.ranks->Renumber(rules_.planning->plan().destinations);
  for (const GroupId engine : rules_.engines->GroupsAt(EngineStep::kSourceless))
    rules_.engines->BeginGrants(engine);
}

// --- Engines that come late -----------------------------------------------------------------------------

std::vector<const Group*> RepairRule::Lacking(const Version& version) const {
  std::vector<const Group*> lacking;
  for (const Group& group : roster_.groups()) {
    if (group.id == kTrainers || !IsWhole(group) || group.served == version) continue;
    const Opening& opening = *rules_.opening;
    if (opening.IsAtFault(group.id, version) || opening.IsGivenUp(group.id, version)) continue;
    if (!rules_.commands->Overdue(group).ok() || TakesBack(roster_, group, version)) continue;
    if (!IsFencing(group)) lacking.push_back(&group);
  }
  return lacking;
}

bool RepairRule::HasNewcomers() const {
  const std::vector<const Group*> lacking = Lacking(rules_.updates->update().version);
  return std::ranges::any_of(lacking, [this](const Group* group) {
    return rules_.engines->Of(group->id) == nullptr && !rules_.deadlines->IsGranting(group->id);
  });
}

bool RepairRule::OpenFromPeers() {
  const bool publishing = roster_.offers().waiting() != 0 && CommonOffer(roster_) >= 0;
  const bool planning = rules_.planning->plan().phase == PlanPhase::kPlanning;
  if (roster_.touched().quiet() || rules_.updates->open() || publishing || planning) return false;
  const Version version = NewestServed();
  std::vector<const Group*> lacking;
  if (version.number >= 0) lacking = Lacking(version);
  const auto holders = lacking.empty() ? 0 : std::ranges::count_if(roster_.groups(), [&](const Group& group) {
    return Holds(group, version);
  });
  if (holders == 0) {
    roster_.touched().NoteQuiet();
    return false;
  }
  OpenFor(std::move(lacking), static_cast<size_t>(holders), version);
  return true;
}

void RepairRule::OpenFor(std::vector<const Group*> lacking, size_t holders, const Version& version) {
  // Those who are known to be late come last.
  std::ranges::stable_partition(
      lacking, [this](const Group* group) { return !rules_.deadlines->IsGranting(group->id); });
  // An engine that has got it gives too: none gives to more than one at a time.
  lacking.resize(std::min(lacking.size(), holders));
  NewUpdate update;
  update.version = version;
  for (const Worker& worker : roster_.workers()) {
    const bool has = worker.hold && protocol::VersionOf(rules_.runs->run(), worker.offered) == version;
    if (worker.group == kTrainers && has) update.trainers.push_back(worker.session);
  }
  for (const Group* group : lacking) {
    update.engines.push_back(group->id);
    out_.LogAndCount("control.engines_refilled", LogLevel::kInfo, "engine ", group->name, " gets version ",
                     ToString(version), " from engines that serve it");
  }
  rules_.updates->OpenFromEngines(std::move(update));
}

}  // namespace weightcast::control
