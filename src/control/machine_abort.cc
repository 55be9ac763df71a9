#include <algorithm>

#include "control/machine.h"

// What becomes of an update when something fails.
namespace weightcast::control {
namespace {

/// Only Cancel is the publisher's own wish: to him the end of another is a failure.
Status Unwished(const Status& reason) {
  return reason.code() == Code::kCancelled ? Status(Code::kUnavailable, reason.message()) : reason;
}

}  // namespace

using protocol::EngineState;

void Machine::AbortRanks(const Target& target, const Status& reason, SessionId fenced_already) {
  for (const Receiver& rank : s_.update->RanksOf(target)) {
    const Worker* worker = Find(rank.session);
    const bool asked = rank.id.sequence != 0;
    if (!asked || worker == nullptr || rank.session == fenced_already) continue;
    Change(*worker)->fencing = rank.id;
    Tell(rank.session,
         protocol::Abort{
             .update = rank.id, .reason = reason, .version = s_.update->version, .started = rank.started});
  }
}

void Machine::StopSenders(const Target& target) {
  if (s_.update->released || s_.update->aborted) return;
  for (const Receiver& rank : s_.update->RanksOf(target)) {
    if (rank.step == RankStep::kGranted)
      TellSources(protocol::Stop{.update = rank.id, .destination = rank.destination});
  }
}

void Machine::EngineOut(Target& target, const Status& reason, const Worker* who, SessionId fenced_already) {
  if (target.step == EngineStep::kOut) return;
  Group& group = ChangeGroup(target.group);
  const bool started = target.step >= EngineStep::kWriting;
  SetStep(target, EngineStep::kOut);
  target.reason = reason;
  target.rank = who == nullptr ? -1 : int64_t{who->rank};
  group.last_error = reason;
  DisarmStep(target.group);
  LogAndCount("control.engines_out", LogLevel::kWarning, "engine ", group.name, " is out of ",
              protocol::ToString(s_.update->id), ": ", reason.message());
  AbortRanks(target, reason, fenced_already);
  if (started) StopSenders(target);
  LosePeerSource(target, reason);
}

void Machine::AbortAll(const Status& reason, EngineStep last) {
  UpdateState& update = *s_.update;
  const bool some_go_on = std::any_of(
      update.targets.begin(), update.targets.end(),
      [&](const Target& target) { return target.step > last && target.step != EngineStep::kOut; });
  if (!some_go_on && !update.released) {
    update.aborted = true;
    TellTrainers(update, protocol::Abort{.update = update.id, .reason = reason, .version = update.version});
  }
  for (Target& target : update.targets)
    if (target.step <= last) EngineOut(target, reason);
}

void Machine::UpdateLoses(const Worker& worker, const Status& loss) {
  const Status reason = Unwished(loss);
  Target* target = TargetOf(worker.group);
  if (target != nullptr && ReceiverOf(worker.session) != nullptr && target->step != EngineStep::kOut) {
    if (target->step >= EngineStep::kServing) {
      Enter(*target, EngineStep::kDone);  // All had committed: it is refilled when whole again.
    } else {
      EngineOut(*target, reason, &worker);
    }
  }
  UpdateState& update = *s_.update;
  std::erase(update.trainers, worker.session);
  const auto& sources = s_.plan.sources;
  const bool gives = std::find(sources.begin(), sources.end(), worker.session) != sources.end();
  if (gives && !update.released) LoseSource(worker, reason);
}

void Machine::OnFailed(const Worker& worker, const protocol::Failed& message) {
  if (message.update.sequence == 0) {
    OnPrepareFailed(worker, message);
    return;
  }
  if (!s_.update) return;
  const Status reason =
      Unwished({message.reason.code(), StrCat(TextOf(worker), ": ", message.reason.message())});
  const bool gives = worker.group == kTrainers || message.destination >= 0;
  gives ? SourceFailed(worker, message, reason) : RankFailed(worker, message, reason);
}

/// A source says that it cannot send: to one destination, or at all.
void Machine::SourceFailed(const Worker& worker, const protocol::Failed& message, const Status& reason) {
  UpdateState& update = *s_.update;
  // Cancelled: it does not have the version any more, and says nothing against what it has sent.
  const bool gives_up = message.reason.code() == Code::kCancelled;
  if (message.destination < 0 && !gives_up) return SourceBroken(worker, message.update, reason);
  if (update.released || update.id != message.update) return;
  if (message.destination < 0) return LoseSource(worker, reason);
  for (const Receiver& rank : update.receivers) {
    // Bytes that have all arrived need no path any more.
    if (rank.id != message.update || rank.destination != message.destination || rank.step >= RankStep::kReady)
      continue;
    Target* target = TargetOf(rank.group);
    if (target->step < EngineStep::kReady && target->step != EngineStep::kSourceless)
      LoseSource(worker, reason, target);
    return;
  }
}

/// What it has sent may be wrong, in an earlier attempt too: no engine switches that has not been told to.
void Machine::SourceBroken(const Worker& worker, const protocol::UpdateId& failed, const Status& reason) {
  const UpdateState& update = *s_.update;
  const bool earlier = update.fresh && failed.term == update.id.term &&
                       failed.sequence == update.id.sequence && Contains(update.trainers, worker.session);
  if (update.id == failed || earlier) AbortAll(reason, EngineStep::kHalting);
}

void Machine::RankFailed(const Worker& worker, const protocol::Failed& message, const Status& reason) {
  const Receiver* rank = ReceiverOf(worker.session);
  if (rank == nullptr || rank->id != message.update) return;
  Target* target = TargetOf(worker.group);
  if (target->step >= EngineStep::kServing || target->step == EngineStep::kSourceless) return;
  if (message.source < 0) return EngineOut(*target, reason, &worker);
  const auto& sources = s_.plan.sources;
  const auto source = static_cast<size_t>(message.source);
  const Worker* lost = source < sources.size() ? Find(sources[source]) : nullptr;
  if (lost != nullptr && rank->step < RankStep::kReady) LoseSource(*lost, reason, target);
}

void Machine::OnAborted(const Worker& worker, const protocol::Aborted& message) {
  const bool asked = worker.fencing == message.update;
  if (asked) {
    Change(worker)->fencing.reset();
  } else {
    // A rank whose user gave up the phases says so by itself: it has fenced already.
    Receiver* rank = ReceiverOf(worker.session);
    Target* target = TargetOf(worker.group);
    if (rank == nullptr || rank->id != message.update || target->step >= EngineStep::kServing) return;
    if (target->step == EngineStep::kSourceless) {
      s_.update->Move(*rank, RankStep::kAsked);  // It is asked for a new grant with the others.
    } else {
      EngineOut(*target, {Code::kUnavailable, StrCat(TextOf(worker), " gave the update up; see its log")},
                &worker, worker.session);
    }
  }
  const bool serves = !message.lost && worker.version.number >= 0;
  {
    auto edit = Change(worker);
    if (worker.state != EngineState::kSuspended)
      edit->state = message.lost ? EngineState::kFailed
                    : serves     ? EngineState::kServing
                                 : EngineState::kJoining;
    if (message.lost) edit->version = {};
    edit->holds = message.landed;
  }
  Group& group = ChangeGroup(worker.group);
  if (!IsFencing(group)) group.fence_overdue = false;
}

void Machine::OnStepTimer(GroupId group) {
  Target* target = TargetOf(group);
  const bool first = target != nullptr && target->step == EngineStep::kGranting && target->part == 0;
  if (first && !s_.update->fresh && !target->overdue) {
    target->overdue = ChangeGroup(group).grant_timer = true;
    Arm(TimerKind::kStep, group, LimitOf(*target));
    return;
  }
  if (const Group* late = FindGroup(group)) Change(*late).grant_timer = false;
  if (target == nullptr) return;
  struct Missing {
    RankStep wanted;
    std::string_view text;
  };
  static constexpr std::string_view kNotInWait =
      " has not switched; let its engine call receive() or wait(), or raise grant_timeout and commit_timeout";
  // By EngineStep.
  static constexpr Missing kMissing[] = {
      {RankStep::kReady, " has not got its bytes from another holder; see its log"},
      {RankStep::kAsked, ""},
      {RankStep::kGranted,
       " has not granted the update; let its engine call begin() or wait(), or raise grant_timeout"},
      {RankStep::kGranted, ""},
      {RankStep::kReady, " has not received every byte; see its log, and the network to it"},
      {RankStep::kReady, ""},
      {RankStep::kAsked, ""},
      {RankStep::kCommitted, " has not switched; call receive() and finish(), or raise commit_timeout"},
      {RankStep::kAsked, ""},
      {RankStep::kServing, " has not said that it serves the version; check that it runs, and see its log"}};
  const bool waits = target->step == EngineStep::kGranted || target->step == EngineStep::kReady;
  if (waits || target->step >= EngineStep::kDone) return;
  const bool steers = target->step == EngineStep::kPausing || target->step == EngineStep::kHalting ||
                      target->step == EngineStep::kSettling || target->step == EngineStep::kAdmitting;
  if (steers) return OnSteerTimer(*target);
  static constexpr Missing kNotHandedOn{RankStep::kGranted,
                                        " has not handed on the last group that it received; let its engine "
                                        "call receive_group() until the last, or raise commit_timeout"};
  const bool hands_on = target->step == EngineStep::kGranting && target->part > 0;
  const Missing& missing = hands_on ? kNotHandedOn : kMissing[static_cast<size_t>(target->step)];
  const Worker* who = nullptr;
  for (const Receiver& rank : s_.update->RanksOf(*target)) {
    const Worker* worker = Find(rank.session);
    if (rank.step < missing.wanted && worker != nullptr && who == nullptr) who = worker;
  }
  const bool late = target->step == EngineStep::kCommitting && HasShadow(group);
  const Status reason(Code::kTimedOut,
                      StrCat(who == nullptr ? "one of its ranks" : TextOf(*who),
                             late ? kNotInWait : missing.text, " (", Seconds(LimitOf(*target)), " s)"));
  if (target->step == EngineStep::kServing) {
    Log(LogLevel::kWarning, reason.message());  // A Serve is never taken back.
    Enter(*target, EngineStep::kDone);
  } else {
    EngineOut(*target, reason, target->step == EngineStep::kSourceless ? nullptr : who);
  }
}

}  // namespace weightcast::control
