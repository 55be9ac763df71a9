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

using wire::EngineState;

void Machine::AbortRanks(const Target& target, const Status& reason, bool started, SessionId fenced_already) {
  for (const Receiver& rank : s_.update->receivers) {
    Worker* worker = Find(rank.session);
    if (rank.group != target.group || worker == nullptr || rank.session == fenced_already) continue;
    worker->fencing = s_.update->id;
    Tell(rank.session,
         wire::Abort{
             .update = s_.update->id, .reason = reason, .version = s_.update->version, .started = started});
  }
}

void Machine::StopSenders(const Target& target) {
  if (s_.update->released || s_.update->aborted) return;
  for (const Receiver& rank : s_.update->receivers) {
    if (rank.group == target.group && rank.step == RankStep::kGranted)
      TellTrainers(wire::Stop{.update = s_.update->id, .destination = rank.destination});
  }
}

void Machine::EngineOut(Target& target, const Status& reason, const Worker* who, SessionId fenced_already) {
  if (target.step == EngineStep::kOut) return;
  Group& group = *FindGroup(target.group);
  const bool started = target.step >= EngineStep::kWriting;
  target.step = EngineStep::kOut;
  target.reason = reason;
  target.rank = who == nullptr ? -1 : int64_t{who->rank};
  group.last_error = reason;
  DisarmStep(target.group);
  Log(LogLevel::kWarning, "engine ", group.name, " is out of ", wire::ToString(s_.update->id), ": ",
      reason.message());
  AbortRanks(target, reason, started, fenced_already);
  if (started) StopSenders(target);
}

void Machine::AbortAll(const Status& reason) {
  UpdateState& update = *s_.update;
  const bool some_go_on = std::any_of(update.targets.begin(), update.targets.end(), [](const Target& target) {
    return target.step > EngineStep::kReady && target.step != EngineStep::kOut;
  });
  if (!some_go_on && !update.released) {
    update.aborted = true;
    TellTrainers(wire::Abort{.update = update.id, .reason = reason, .version = update.version});
  }
  for (Target& target : update.targets)
    if (target.step <= EngineStep::kReady) EngineOut(target, reason);
}

void Machine::UpdateLoses(const Worker& worker, const Status& loss) {
  const Status reason = Unwished(loss);
  UpdateState& update = *s_.update;
  if (worker.group == kTrainers) {
    const auto& trainers = s_.plan.trainers;
    const bool takes_part =
        worker.rank < trainers.size() && trainers[worker.rank] == worker.session && !update.released;
    if (takes_part) AbortAll(reason);
    return;
  }
  Target* target = TargetOf(worker.group);
  const bool takes_part =
      target != nullptr && std::any_of(update.receivers.begin(), update.receivers.end(),
                                       [&](const Receiver& r) { return r.session == worker.session; });
  if (!takes_part || target->step == EngineStep::kOut) return;
  if (target->step >= EngineStep::kServing) {
    Enter(*target,
          EngineStep::kDone);  // All had committed: its others serve; it is refilled when whole again.
  } else {
    EngineOut(*target, reason, &worker);
  }
}

void Machine::OnFailed(Worker& worker, const wire::Failed& message) {
  if (message.update.sequence == 0) {
    OnPrepareFailed(worker, message);
    return;
  }
  if (!s_.update || s_.update->id != message.update) return;
  UpdateState& update = *s_.update;
  const Status reason =
      Unwished({message.reason.code(), StrCat(TextOf(worker), ": ", message.reason.message())});
  if (worker.group == kTrainers && message.destination < 0) {
    if (!update.released) AbortAll(reason);
    return;
  }
  const Worker* who = &worker;
  if (worker.group == kTrainers) {
    const auto rank =
        std::find_if(update.receivers.begin(), update.receivers.end(),
                     [&](const Receiver& receiver) { return receiver.destination == message.destination; });
    // Bytes that have all arrived need no road any more.
    if (rank == update.receivers.end() || rank->step >= RankStep::kReady) return;
    who = Find(rank->session);
    if (who == nullptr) return;  // It has left, and its engine is out with it.
  }
  Target* target = TargetOf(who->group);
  if (target == nullptr || target->step >= EngineStep::kServing) return;
  EngineOut(*target, reason, who);
}

void Machine::OnAborted(Worker& worker, const wire::Aborted& message) {
  const bool asked = worker.fencing == message.update;
  if (asked) {
    worker.fencing.reset();
  } else {
    // A rank whose user gave up the phases says so by itself: it has fenced already.
    Target* target = TargetOf(worker.group);
    if (target == nullptr || s_.update->id != message.update || target->step >= EngineStep::kServing) return;
    EngineOut(*target, {Code::kUnavailable, StrCat(TextOf(worker), " gave the update up")}, &worker,
              worker.session);
  }
  const bool serves = !message.lost && worker.version.number >= 0;
  worker.state = message.lost ? EngineState::kFailed : serves ? EngineState::kServing : EngineState::kJoining;
  if (message.lost) worker.version = {};
  Group& group = *FindGroup(worker.group);
  const bool still = std::any_of(s_.workers.begin(), s_.workers.end(), [&](const Worker& other) {
    return other.group == group.id && other.fencing.has_value();
  });
  if (!still) group.fence_overdue = false;
}

void Machine::OnStepTimer(GroupId group) {
  if (Group* late = FindGroup(group)) late->grant_timer = false;
  Target* target = TargetOf(group);
  if (target == nullptr) return;
  static constexpr RankStep kWanted[] = {RankStep::kGranted, RankStep::kGranted,   RankStep::kReady,
                                         RankStep::kReady,   RankStep::kCommitted, RankStep::kServing};
  static constexpr const char* kMissing[] = {
      " has not granted the update; is its engine in begin() or wait()? See grant_timeout",
      "",
      " has not received every byte",
      "",
      " has not switched; call receive() and finish(), or raise commit_timeout",
      " has not answered Serve"};
  static constexpr const char* kNotInWait =
      " has not switched; is its engine in receive() or wait()? See grant_timeout and commit_timeout";
  const bool waits = target->step == EngineStep::kGranted || target->step == EngineStep::kReady;
  if (waits || target->step >= EngineStep::kDone) return;
  const auto step = static_cast<size_t>(target->step);
  const Worker* who = nullptr;
  for (const Receiver& rank : s_.update->receivers) {
    const Worker* worker = Find(rank.session);
    if (rank.group == group && rank.step < kWanted[step] && worker != nullptr && who == nullptr) who = worker;
  }
  const bool late = target->step == EngineStep::kCommitting && HasShadow(group);
  const Status reason(Code::kTimedOut,
                      StrCat(who == nullptr ? "" : TextOf(*who), late ? kNotInWait : kMissing[step], " (",
                             Seconds(LimitOf(*target)), " s)"));
  if (target->step == EngineStep::kServing) {
    Log(LogLevel::kWarning, reason.message());  // A Serve is never taken back.
    Enter(*target, EngineStep::kDone);
  } else {
    EngineOut(*target, reason, who);
  }
}

}  // namespace weightcast::control
