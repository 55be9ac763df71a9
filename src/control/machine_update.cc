#include <algorithm>
#include <utility>

#include "control/machine.h"

// One update: from the grants to Serve, and its end.
namespace weightcast::control {

using protocol::EngineState;

Target* Machine::TargetOf(GroupId group) {
  if (!s_.update) return nullptr;
  const auto at = std::find_if(s_.update->targets.begin(), s_.update->targets.end(),
                               [&](const Target& target) { return target.group == group; });
  return at == s_.update->targets.end() ? nullptr : &*at;
}

Receiver* Machine::ReceiverOf(SessionId session) {
  if (!s_.update) return nullptr;
  const auto at = std::find_if(s_.update->receivers.begin(), s_.update->receivers.end(),
                               [&](const Receiver& receiver) { return receiver.session == session; });
  return at == s_.update->receivers.end() ? nullptr : &*at;
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

bool Machine::AllAt(GroupId group, RankStep step) const {
  return std::all_of(s_.update->receivers.begin(), s_.update->receivers.end(), [&](const Receiver& receiver) {
    return receiver.group != group || receiver.step >= step;
  });
}

bool Machine::HasShadow(GroupId id) const {
  return std::any_of(s_.workers.begin(), s_.workers.end(), [&](const Worker& worker) {
    return worker.group == id && worker.landing == protocol::Landing::kShadow;
  });
}

/// Ranks of one engine have the same number: the plan job sees to it.
bool Machine::IsLastPart(const Target& target) const {
  const auto& workers = s_.workers;
  const auto rank = std::find_if(workers.begin(), workers.end(),
                                 [&](const Worker& worker) { return worker.group == target.group; });
  return rank == workers.end() || target.part + 1 >= rank->parts;
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
  if (Group* group = FindGroup(id)) group->grant_timer = false;
  Disarm(TimerKind::kStep, id);
}

void Machine::Enter(Target& target, EngineStep step) {
  target.step = step;
  Group& group = *FindGroup(target.group);
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

void Machine::OnGranted(Worker& worker, const protocol::Granted& message) {
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
  rank->step = RankStep::kGranted;
  worker.holds = {};
  rank->grants = message.grants;
  rank->compares = message.compares;
  worker.state = EngineState::kUpdating;
  if (AllAt(worker.group, RankStep::kGranted)) Enter(*TargetOf(worker.group), EngineStep::kGranted);
}

/// Until a source is told of its grant nothing can be written: whoever fails before costs no engine its
/// version.
void Machine::StartGranted() {
  UpdateState& update = *s_.update;
  const bool waiting = std::any_of(update.targets.begin(), update.targets.end(), [](const Target& target) {
    return target.step <= EngineStep::kGranting && target.part == 0;
  });
  if (waiting && SwitchTogether()) return;
  for (Target& target : update.targets) {
    if (target.step != EngineStep::kGranted) continue;
    for (Receiver& rank : update.receivers) {
      if (rank.group != target.group) continue;
      rank.started = true;
      for (const protocol::SourceGrant& grant : std::exchange(rank.grants, {}))
        Tell(s_.plan.sources[grant.source], protocol::Start{.update = rank.id,
                                                            .version = update.version,
                                                            .destination = rank.destination,
                                                            .slot = grant.slot,
                                                            .grant = grant.id,
                                                            .part = target.part,
                                                            .compares = rank.compares});
    }
    update.started = true;
    Enter(target, EngineStep::kWriting);
    // Ranks without a source are ready as soon as they have granted.
    EndPart(target);
  }
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
  if (!s_.update) return;
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
    target.step = EngineStep::kOut;
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
  s_.update.reset();
}

/// A rank registered anew, or sleeps, before it had granted: what it was asked for was of its old tensors. As
/// long as no source knows of the update, it costs nobody anything to begin it again under the next plan.
void Machine::BeginAgain(const Worker& worker, std::string_view what) {
  Target* target = s_.update ? TargetOf(worker.group) : nullptr;
  if (target == nullptr || target->step == EngineStep::kOut) return;
  const auto& ranks = s_.update->receivers;
  const bool asked = std::any_of(ranks.begin(), ranks.end(), [&](const Receiver& rank) {
    return rank.session == worker.session && rank.step == RankStep::kAsked;
  });
  if (!asked) return;
  // It is planned for the repair with the tensors that it has by then. One that sleeps never answers.
  if (target->step == EngineStep::kSourceless && worker.registered) return;
  const std::string text = StrCat(TextOf(worker), " ", what);
  const bool gone = s_.update->fresh && protocol::VersionOf(s_.run, CommonOffer()) != s_.update->version;
  if (s_.update->started || gone)
    return EngineOut(*target, {Code::kUnavailable, text + "; it takes part in the next update"}, &worker);
  Log(LogLevel::kInfo, protocol::ToString(s_.update->id), " begins again: ", text);
  for (Worker& trainer : s_.workers)
    if (trainer.group == kTrainers) trainer.waiting = trainer.waiting || s_.update->fresh;
  WithdrawUnstarted();
}

void Machine::OnReady(Worker& worker, const protocol::Ready& message) {
  Receiver* rank = InTurn(worker, message.update, RankStep::kGranted, "Ready", message.part);
  if (rank == nullptr) return;
  rank->step = RankStep::kReady;
  if (worker.parts == 1) worker.holds = s_.update->version;
  rank->bytes = message.bytes;
  rank->seconds = message.seconds;
  rank->compared = message.compared;
  rank->routes.clear();
  for (const protocol::SourceBytes& source : message.sources) {
    const Worker* sender =
        source.source < s_.plan.sources.size() ? Find(s_.plan.sources[source.source]) : nullptr;
    if (sender == nullptr) continue;  // Only a statistic.
    rank->routes.push_back({.sender = NameOf(*sender),
                            .receiver = NameOf(worker),
                            .bytes = source.bytes,
                            .seconds = source.seconds});
  }
  Target& target = *TargetOf(worker.group);
  if (IsLastPart(target)) worker.state = EngineState::kReady;
  EndPart(target);
}

/// What a source says of its bytes is the rank's to compare. Nothing here depends on it.
void Machine::OnSentDigests(const Worker& source, const protocol::SentDigests& message) {
  if (!s_.update) return;
  const auto number = std::ranges::find(s_.plan.sources, source.session) - s_.plan.sources.begin();
  if (number == std::ssize(s_.plan.sources)) return;
  for (const Receiver& rank : s_.update->receivers) {
    if (rank.id != message.update || rank.destination != message.destination) continue;
    Tell(rank.session, protocol::SourceDigests{.update = rank.id,
                                               .source = static_cast<uint32_t>(number),
                                               .part = message.part,
                                               .digests = message.digests});
  }
}

/// When all ranks of an engine have a part, each hands it on, and grants the next one when it has.
void Machine::EndPart(Target& target) {
  if (target.step != EngineStep::kWriting || !AllAt(target.group, RankStep::kReady)) return;
  if (IsLastPart(target)) return Enter(target, EngineStep::kReady);
  ++target.part;
  target.step = EngineStep::kGranting;
  for (Receiver& rank : s_.update->receivers) {
    if (rank.group != target.group) continue;
    rank.step = RankStep::kAsked;
    Tell(rank.session,
         protocol::GrantRequest{.update = rank.id, .version = s_.update->version, .part = target.part});
  }
  Arm(TimerKind::kStep, target.group, LimitOf(target));
}

void Machine::ReleaseSources() {
  UpdateState& update = *s_.update;
  if (update.released || update.aborted) return;
  const bool any = std::any_of(update.targets.begin(), update.targets.end(),
                               [](const Target& target) { return target.step != EngineStep::kOut; });
  const bool waiting = std::any_of(update.targets.begin(), update.targets.end(),
                                   [](const Target& target) { return target.step < EngineStep::kReady; });
  if (!any || waiting) return;
  update.released = true;
  const protocol::Release release{.update = update.id, .version = update.version};
  TellTrainers(update, release);
  if (s_.plan.from_engines) TellSources(release);
}

void Machine::CommitReady() {
  UpdateState& update = *s_.update;
  const bool waiting = std::any_of(update.targets.begin(), update.targets.end(),
                                   [](const Target& target) { return target.step < EngineStep::kReady; });
  if (waiting && SwitchTogether()) return;
  for (Target& target : update.targets)
    if (target.step == EngineStep::kReady) OrderFor(target, EngineStep::kHalting, protocol::Move::kPause, {});
}

void Machine::TellCommit(Target& target) {
  for (Receiver& rank : s_.update->receivers) {
    if (rank.group != target.group) continue;
    rank.step = RankStep::kCommitting;
    Tell(rank.session, protocol::Commit{.update = rank.id});
  }
  Enter(target, EngineStep::kCommitting);
}

void Machine::OnCommitted(Worker& worker, const protocol::Committed& message) {
  Receiver* rank = InTurn(worker, message.update, RankStep::kCommitting, "Committed");
  if (rank == nullptr) return;
  rank->step = RankStep::kCommitted;
  worker.state = EngineState::kCommitted;
  if (!AllAt(worker.group, RankStep::kCommitted)) return;
  OrderFor(*TargetOf(worker.group), EngineStep::kSettling, protocol::Move::kSettle, s_.update->version);
}

void Machine::TellServe(Target& target) {
  for (const Receiver& rank : s_.update->receivers) {
    Worker* told = Find(rank.session);
    if (rank.group != target.group || told == nullptr) continue;
    told->told = rank.id;
    told->told_version = s_.update->version;
    told->newest = protocol::LaterOf(told->newest, s_.update->version);
    Tell(rank.session, protocol::Serve{.update = rank.id});
  }
  Enter(target, EngineStep::kServing);
}

void Machine::OnServing(Worker& worker, const protocol::Serving& message) {
  if (worker.told == message.update && worker.told_version == message.version) {
    // Also when the update has not waited for this answer: a Serve is never taken back.
    worker.told.reset();
    worker.version = message.version;
    if (worker.state == EngineState::kCommitted) worker.state = EngineState::kServing;
    Receiver* rank = InTurn(worker, message.update, RankStep::kCommitted, "Serving");
    if (rank == nullptr) return;
    rank->step = RankStep::kServing;
    if (AllAt(worker.group, RankStep::kServing))
      OrderFor(*TargetOf(worker.group), EngineStep::kAdmitting, protocol::Move::kAdmit, s_.update->version);
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
  const auto over = [](const Target& target) {
    return target.step == EngineStep::kDone || target.step == EngineStep::kOut;
  };
  if (std::all_of(s_.update->targets.begin(), s_.update->targets.end(), over)) Finish();
}

protocol::Done Machine::MakeDone(const UpdateState& update) const {
  protocol::Done done{.update = update.id,
                      .version = update.version,
                      .met_policy = true,
                      .reason = {},
                      .engines = update.absent,
                      .senders = {},
                      .receivers = {},
                      .routes = {},
                      .seconds = 0};
  for (const Target& target : update.targets)
    done.engines.push_back({.engine = FindGroup(target.group)->name,
                            .committed = target.step == EngineStep::kDone,
                            .reason = target.reason,
                            .rank = target.rank});
  size_t committed = 0;
  for (const protocol::EngineOutcome& outcome : done.engines) {
    committed += outcome.committed ? 1 : 0;
    if (!outcome.committed && done.reason.ok()) done.reason = outcome.reason;
  }
  done.met_policy = committed > 0 && (!config_.together || committed == done.engines.size());
  if (done.met_policy) done.reason = Status::Ok();
  if (!done.met_policy && done.reason.ok())
    done.reason = {
        Code::kUnavailable,
        "no engine took part: none has joined, or all failed or were late; see them with weightcast info"};
  for (uint32_t rank = 0; rank < s_.groups.front().world_size; ++rank)
    done.senders.push_back({.name = {.role = protocol::Role::kTrainer, .engine = "", .rank = rank}});
  for (const Receiver& receiver : update.receivers) {
    if (receiver.step < RankStep::kReady) continue;
    const protocol::WorkerName name{
        .role = protocol::Role::kInference, .engine = FindGroup(receiver.group)->name, .rank = receiver.rank};
    done.receivers.push_back(
        {.name = name, .bytes = receiver.bytes, .seconds = receiver.seconds, .compared = receiver.compared});
    for (const protocol::RouteBytes& route : receiver.routes) {
      auto sender =
          std::find_if(done.senders.begin(), done.senders.end(),
                       [&](const protocol::RankBytes& known) { return known.name == route.sender; });
      if (sender == done.senders.end()) sender = done.senders.insert(sender, {.name = route.sender});
      sender->bytes += route.bytes;
      sender->seconds = std::max(sender->seconds, route.seconds);
      done.routes.push_back(route);
    }
  }
  return done;
}

void Machine::Finish() {
  const UpdateState update = std::move(*s_.update);
  s_.update.reset();
  if (s_.plan.from_engines && !update.released)
    TellSources(protocol::Release{.update = update.id, .version = update.version});
  if (s_.plan.partial) s_.plan.stale = true;
  const protocol::Done done = MakeDone(update);
  bool any_committed = false;
  for (const Target& target : update.targets) {
    Group& group = *FindGroup(target.group);
    if (target.step == EngineStep::kDone) {
      any_committed = true;
      group.tries = 0;
      group.last_error = Status::Ok();
      continue;
    }
    if (target.late) continue;
    group.tries = group.tried == update.version ? static_cast<uint8_t>(group.tries + 1) : uint8_t{1};
    group.tried = update.version;
    group.at_fault = target.rank >= 0;
    s_.plan.stale = true;  // The next epoch makes anew the connections that broke.
  }
  if (any_committed) s_.committed = protocol::LaterOf(s_.committed, update.version);
  if (!done.met_policy) s_.last_error = done.reason;
  TellTrainers(update, done);
  LogAndCount(done.met_policy ? "control.updates_committed" : "control.updates_failed",
              done.met_policy ? LogLevel::kInfo : LogLevel::kWarning, protocol::ToString(update.id),
              ": version ", ToString(update.version),
              done.met_policy ? " is served" : " failed: ", done.reason.message());
}

}  // namespace weightcast::control
