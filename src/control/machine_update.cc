#include <algorithm>
#include <utility>

#include "control/machine.h"

// One update: from the grants to Serve, and its end.
namespace weightcast::control {

using protocol::EngineState;

void Machine::SetStep(Target& target, EngineStep step) {
  s_.update->Move(target, step);
  s_.roster.Touch(target.group);
}

UpdateState Machine::TakeUpdate() {
  s_.roster.TouchAll();
  UpdateState update = std::move(*s_.update);
  s_.update.reset();
  return update;
}

Receiver* Machine::InTurn(const Worker& worker, const protocol::UpdateId& update, RankStep step,
                          std::string_view what, std::optional<uint32_t> part) {
  Receiver* at = ReceiverOf(worker.session);
  if (at == nullptr || at->id != update) return nullptr;
  Target& target = *TargetOf(worker.group);
  const bool over = target.step == EngineStep::kOut || target.step == EngineStep::kDone;
  if (over || target.step == EngineStep::kSourceless) return nullptr;
  const uint32_t said = part.value_or(target.part);
  if (at->step == step && said == target.part) return at;
  if (said < target.part || (at->step > step && said == target.part)) return nullptr;  // Said again.
  EngineOut(target,
            {Code::kProtocol,
             StrCat(TextOf(worker), " said ", what, " out of turn; use the same weightcast on all hosts")},
            &worker);
  return nullptr;
}

bool Machine::HasShadow(GroupId id) const {
  const Group& group = *FindGroup(id);
  return group.counts.in_place != group.members;
}

/// Ranks of one engine have the same number: the plan job sees to it.
bool Machine::IsLastPart(const Target& target) const {
  const auto& ranks = FindGroup(target.group)->ranks;
  const auto rank = std::ranges::find_if(ranks, [](SessionId session) { return session != 0; });
  return rank == ranks.end() || target.part + 1 >= Find(*rank)->parts;
}

Duration Machine::LimitOf(const Target& target) const {
  switch (target.step) {
    case EngineStep::kSourceless:
      return 2 * config_.timeout;  // To fence, to plan and to connect.
    case EngineStep::kGranting:    // Later parts: the engine takes over the one before.
      return target.part == 0 ? config_.grant_timeout : config_.commit_timeout;
    case EngineStep::kWriting:
      return config_.timeout;
    case EngineStep::kCommitting:
      // With shadow landing this is the step for which the engine has to come.
      return (HasShadow(target.group) ? config_.grant_timeout : Duration::zero()) + config_.commit_timeout;
    default:
      return config_.commit_timeout;
  }
}

void Machine::DisarmStep(GroupId id) {
  if (const Group* group = FindGroup(id)) Change(*group).grant_timer = false;
  Disarm(TimerKind::kStep, id);
}

void Machine::Enter(Target& target, EngineStep step) {
  SetStep(target, step);
  Group& group = ChangeGroup(target.group);
  group.grant_timer = false;
  switch (step) {
    case EngineStep::kWriting:
    case EngineStep::kCommitting:
    case EngineStep::kServing:
      Arm(TimerKind::kStep, target.group, LimitOf(target));
      break;
    case EngineStep::kReady:
      Log(LogLevel::kInfo, "engine ", group.name, " has every byte of version ",
          ToString(s_.update->version));
      [[fallthrough]];
    default:
      Disarm(TimerKind::kStep, target.group);
  }
}

void Machine::OnGranted(const Worker& worker, const protocol::Granted& message) {
  Receiver* rank = InTurn(worker, message.update, RankStep::kAsked, "Granted", message.part);
  if (rank == nullptr) return;
  std::vector<bool> named(s_.plan.sources.size());
  for (const protocol::SourceGrant& grant : message.grants) {
    if (grant.source < named.size() && !named[grant.source]) {
      named[grant.source] = true;
      continue;
    }
    EngineOut(
        *TargetOf(worker.group),
        {Code::kProtocol, StrCat(TextOf(worker), " granted source ", grant.source,
                                 grant.source < named.size() ? " twice" : ", which the plan does not have",
                                 "; use the same weightcast on all hosts")},
        &worker);
    return;
  }
  s_.update->Move(*rank, RankStep::kGranted);
  rank->grants = message.grants;
  rank->compares = message.compares;
  {
    auto edit = Change(worker);
    edit->holds = {};
    edit->state = EngineState::kUpdating;
  }
  Target& target = *TargetOf(worker.group);
  if (UpdateState::AllAt(target, RankStep::kGranted)) Enter(target, EngineStep::kGranted);
}

/// Until a source is told of its grant nothing can be written: whoever fails before costs no engine its
/// version.
void Machine::StartGranted() {
  UpdateState& update = *s_.update;
  if (update.At(EngineStep::kGranted) == 0) return;
  if (update.ungranted() != 0 && SwitchTogether()) return;
  std::vector<Target*> granted;
  for (Target& target : update.targets)
    if (target.step == EngineStep::kGranted) granted.push_back(&target);
  TellStart(granted);
  for (Target* target : granted) {
    update.started = true;
    Enter(*target, EngineStep::kWriting);
    // Ranks without a source are ready as soon as they have granted.
    EndPart(*target);
  }
}

/// To each source one message for all its destinations; more, if they are at different parts or attempts.
void Machine::TellStart(const std::vector<Target*>& targets) {
  UpdateState& update = *s_.update;
  std::vector<protocol::Start> starts(s_.plan.sources.size());
  std::vector<uint32_t> told;  // Sources with a grant, as they come.
  protocol::UpdateId id;
  uint32_t part = 0;
  const auto tell = [&] {
    for (const uint32_t source : std::exchange(told, {}))
      Tell(s_.plan.sources[source], std::exchange(starts[source], {}));
  };
  for (const Target* target : targets) {
    for (Receiver& rank : update.RanksOf(*target)) {
      rank.started = true;
      if (id != rank.id || part != target->part) tell();
      id = rank.id;
      part = target->part;
      for (const protocol::SourceGrant& grant : std::exchange(rank.grants, {})) {
        protocol::Start& start = starts[grant.source];
        if (start.grants.empty()) {
          start.update = id;
          start.version = update.version;
          start.part = part;
          told.push_back(grant.source);
        }
        start.grants.push_back({.destination = rank.destination,
                                .slot = grant.slot,
                                .grant = grant.id,
                                .compares = rank.compares});
      }
    }
  }
  tell();
}

void Machine::SupersedeUnstarted() {
  if (!s_.update || s_.update->started || !SomethingNewer()) return;
  LogAndCount("control.updates_superseded", LogLevel::kInfo, protocol::ToString(s_.update->id), ": version ",
              ToString(s_.update->version), " is superseded before anything was sent");
  TellTrainers(*s_.update, protocol::Superseded{.version = s_.update->version});
  WithdrawUnstarted();
}

bool Machine::SomethingNewer() const {
  const Version offered = protocol::VersionOf(s_.run, CommonOffer());
  return AnyWaiting() && offered.number >= 0 &&
         protocol::RunAndNumber(s_.update->version) < protocol::RunAndNumber(offered);
}

/// Whether it is the engine that has not come: to grant, or to switch to a version that others serve already.
bool Machine::IsLate(const Target& target) const {
  if (target.part > 0) return false;
  const bool switches =
      !s_.update->fresh && target.step == EngineStep::kCommitting && HasShadow(target.group);
  return target.step == EngineStep::kGranting || switches;
}

void Machine::LeaveLate() {
  if (!s_.update || (s_.update->fresh && !SomethingNewer())) return;
  UpdateState& update = *s_.update;
  bool through = false;
  bool overdue = true;
  bool begun = false;
  for (const Target& target : update.targets) {
    const bool late = IsLate(target);
    if (!late && target.step < EngineStep::kDone) return;
    through = through || !late;
    overdue = overdue && (!late || (target.overdue && target.step == EngineStep::kGranting));
    begun = begun || (late && target.step != EngineStep::kGranting);
  }
  bool newcomers = false;
  if (!update.fresh && overdue) {
    for (const Group* group : Lacking(update.version))
      newcomers = newcomers || (TargetOf(group->id) == nullptr && !group->grant_timer);
  }
  if (!newcomers && !((through || begun) && SomethingNewer())) return;
  if (!through && !begun) return WithdrawUnstarted();
  for (Target& target : update.targets) {
    if (!IsLate(target)) continue;
    const std::string_view engine = FindGroup(target.group)->name;
    AbortRanks(target, Status::Ok());
    // Whoever has not granted does not get the whole time anew.
    if (target.step != EngineStep::kGranting || !FindGroup(target.group)->grant_timer)
      DisarmStep(target.group);
    SetStep(target, EngineStep::kOut);
    target.late = true;
    target.reason = {Code::kUnavailable,
                     StrCat("engine ", engine, " granted no memory for version ", ToString(update.version),
                            " before the next update was to begin; let it call wait or begin more often")};
  }
  AdvanceUpdate();
}

/// Whoever is late does not get the whole time anew.
void Machine::WithdrawUnstarted() {
  for (const Target& target : s_.update->targets) {
    if (target.step != EngineStep::kOut) AbortRanks(target, Status::Ok());
    if (!FindGroup(target.group)->grant_timer) DisarmStep(target.group);
  }
  if (s_.plan.partial) s_.plan.stale = true;
  TakeUpdate();
}

/// A rank registered anew, or sleeps, before it had granted: what it was asked for was of its old tensors. As
/// long as no source knows of the update, it costs nobody anything to begin it again under the next plan.
void Machine::BeginAgain(const Worker& worker, std::string_view what) {
  Target* target = s_.update ? TargetOf(worker.group) : nullptr;
  if (target == nullptr || target->step == EngineStep::kOut) return;
  const Receiver* rank = ReceiverOf(worker.session);
  if (rank == nullptr || rank->step != RankStep::kAsked) return;
  // It is planned for the repair with the tensors that it has by then. One that sleeps never answers.
  if (target->step == EngineStep::kSourceless && worker.registered) return;
  const std::string text = StrCat(TextOf(worker), " ", what);
  const bool gone = s_.update->fresh && protocol::VersionOf(s_.run, CommonOffer()) != s_.update->version;
  if (s_.update->started || gone)
    return EngineOut(*target, {Code::kUnavailable, text + "; it takes part in the next update"}, &worker);
  Log(LogLevel::kInfo, protocol::ToString(s_.update->id), " begins again: ", text);
  if (s_.update->fresh)
    for (const SessionId session : s_.roster.trainers().ranks)
      if (session != 0) Change(*Find(session))->waiting = true;
  WithdrawUnstarted();
}

void Machine::OnReady(const Worker& worker, const protocol::Ready& message) {
  Receiver* rank = InTurn(worker, message.update, RankStep::kGranted, "Ready", message.part);
  if (rank == nullptr) return;
  s_.update->Move(*rank, RankStep::kReady);
  if (worker.parts == 1) Change(worker)->holds = s_.update->version;
  rank->bytes = message.bytes;
  rank->seconds = message.seconds;
  rank->compared = message.compared;
  rank->routes.clear();
  for (const protocol::SourceBytes& source : message.sources) {
    const size_t sender = s_.update->first_sender + source.source;
    if (sender >= s_.update->senders.size()) continue;  // Only a statistic.
    rank->routes.push_back(
        {.sender = static_cast<uint32_t>(sender), .bytes = source.bytes, .seconds = source.seconds});
  }
  Target& target = *TargetOf(worker.group);
  if (IsLastPart(target)) Change(worker)->state = EngineState::kReady;
  EndPart(target);
}

/// What a source says of its bytes is the rank's to compare. Nothing here depends on it.
void Machine::OnSentDigests(const Worker& source, const protocol::SentDigests& message) {
  if (!s_.update) return;
  const auto number = std::ranges::find(s_.plan.sources, source.session) - s_.plan.sources.begin();
  if (number == std::ssize(s_.plan.sources)) return;
  if (message.destination >= s_.plan.destinations.size()) return;
  const Receiver* rank = ReceiverOf(s_.plan.destinations[message.destination]);
  if (rank == nullptr || rank->id != message.update || rank->destination != message.destination) return;
  Tell(rank->session, protocol::SourceDigests{.update = rank->id,
                                              .source = static_cast<uint32_t>(number),
                                              .part = message.part,
                                              .digests = message.digests});
}

/// When all ranks of an engine have a part, each hands it on, and grants the next one when it has.
void Machine::EndPart(Target& target) {
  if (target.step != EngineStep::kWriting || !UpdateState::AllAt(target, RankStep::kReady)) return;
  if (IsLastPart(target)) return Enter(target, EngineStep::kReady);
  s_.update->Move(target, EngineStep::kGranting, target.part + 1);
  for (Receiver& rank : s_.update->RanksOf(target)) {
    s_.update->Move(rank, RankStep::kAsked);
    Tell(rank.session,
         protocol::GrantRequest{.update = rank.id, .version = s_.update->version, .part = target.part});
  }
  Arm(TimerKind::kStep, target.group, LimitOf(target));
}

void Machine::ReleaseSources() {
  UpdateState& update = *s_.update;
  if (update.released || update.aborted) return;
  const bool any = update.At(EngineStep::kOut) != update.targets.size();
  const bool waiting = update.Before(EngineStep::kReady) != 0;
  if (!any || waiting) return;
  update.released = true;
  const protocol::Release release{.update = update.id, .version = update.version};
  TellTrainers(update, release);
  if (s_.plan.from_engines) TellSources(release);
}

void Machine::CommitReady() {
  UpdateState& update = *s_.update;
  if (update.At(EngineStep::kReady) == 0) return;
  const bool waiting = update.Before(EngineStep::kReady) != 0;
  if (waiting && SwitchTogether()) return;
  for (Target& target : update.targets)
    if (target.step == EngineStep::kReady) OrderFor(target, EngineStep::kHalting, protocol::Move::kPause, {});
}

void Machine::TellCommit(Target& target) {
  for (Receiver& rank : s_.update->RanksOf(target)) {
    s_.update->Move(rank, RankStep::kCommitting);
    Tell(rank.session, protocol::Commit{.update = rank.id});
  }
  Enter(target, EngineStep::kCommitting);
}

void Machine::OnCommitted(const Worker& worker, const protocol::Committed& message) {
  Receiver* rank = InTurn(worker, message.update, RankStep::kCommitting, "Committed");
  if (rank == nullptr) return;
  s_.update->Move(*rank, RankStep::kCommitted);
  Change(worker)->state = EngineState::kCommitted;
  Target& target = *TargetOf(worker.group);
  if (!UpdateState::AllAt(target, RankStep::kCommitted)) return;
  OrderFor(target, EngineStep::kSettling, protocol::Move::kSettle, s_.update->version);
}

void Machine::TellServe(Target& target) {
  for (const Receiver& rank : s_.update->RanksOf(target)) {
    const Worker* told = Find(rank.session);
    if (told == nullptr) continue;
    auto edit = Change(*told);
    edit->told = rank.id;
    edit->told_version = s_.update->version;
    edit->newest = protocol::LaterOf(told->newest, s_.update->version);
    Tell(rank.session, protocol::Serve{.update = rank.id});
  }
  Enter(target, EngineStep::kServing);
}

void Machine::OnServing(const Worker& worker, const protocol::Serving& message) {
  if (worker.told == message.update && worker.told_version == message.version) {
    // Also when the update has not waited for this answer: a Serve is never taken back.
    {
      auto edit = Change(worker);
      edit->told.reset();
      edit->version = message.version;
      if (worker.state == EngineState::kCommitted) edit->state = EngineState::kServing;
    }
    Receiver* rank = InTurn(worker, message.update, RankStep::kCommitted, "Serving");
    if (rank == nullptr) return;
    s_.update->Move(*rank, RankStep::kServing);
    Target& target = *TargetOf(worker.group);
    if (UpdateState::AllAt(target, RankStep::kServing))
      OrderFor(target, EngineStep::kAdmitting, protocol::Move::kAdmit, s_.update->version);
    return;
  }
  const Receiver* rank = ReceiverOf(worker.session);
  if (rank == nullptr || rank->id != message.update) return;
  RefuseWorker(worker.session,
               {Code::kProtocol,
                StrCat(TextOf(worker), " says that it serves version ", ToString(message.version),
                       ", which the controller did not order; use the same weightcast on all hosts")});
}

void Machine::AdvanceUpdate() {
  if (!s_.update) return;
  TryRepair();
  if (!s_.update) return;
  StartGranted();
  CommitReady();
  ReleaseSources();
  if (s_.update->AllOver()) Finish();
}

}  // namespace weightcast::control
