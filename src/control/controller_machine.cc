#include "control/controller_machine.h"

#include <algorithm>

#include "control/machine.h"

namespace weightcast::control {

using protocol::EngineState;

MachineState InitialState() { return {}; }

void Step(const MachineConfig& config, MachineState& state, const Event& event, Actions& actions) {
  std::visit([&](const auto& what) { Machine(config, state, actions).On(what); }, event);
  state.roster.Untouch();
}

void Machine::Advance() {
  AdvanceUpdate();
  SupersedeUnstarted();
  LeaveLate();
  ForgetEmptyGroups();
  FailHopeless();
  if (!s_.update) {
    Replan();
    TryOpen();
    AdvanceUpdate();  // One without targets ends as it opens.
  }
  SteerIdle();
  ArmJoinTimers();
  ArmCatchUp();
}

void Machine::On(const StreamBroken& event) {
  if (Group* group = SteeredBy(event.session)) group->steering.connected = false;
  const Worker* worker = Find(event.session);
  if (worker == nullptr) return;
  Change(*worker)->connected = false;
  Log(LogLevel::kInfo, TextOf(*worker), ": connection broken; lost in ", Seconds(config_.lease),
      " s unless it comes back");
}

void Machine::On(const Resumed& event) {
  if (Group* group = SteeredBy(event.session)) group->steering.connected = true;
  const Worker* worker = Find(event.session);
  if (worker == nullptr) return;
  Change(*worker)->connected = true;
  // It hears now of the run that began meanwhile.
  if (worker->group == kTrainers) JoinRun(worker->rank, worker->incarnation);
  Log(LogLevel::kInfo, TextOf(*worker), " is back");
}

void Machine::On(const Gone& event) {
  if (Group* group = SteeredBy(event.session)) {
    actions_.push_back(Forget{event.session});
    LoseControl(*group, {event.reason.code(), StrCat("the control of engine ", group->name,
                                                     " is lost: ", event.reason.message())});
    Advance();
    return;
  }
  const Worker* worker = Find(event.session);
  if (worker == nullptr) return;
  const Status reason(event.reason.code(), StrCat(TextOf(*worker), " is lost: ", event.reason.message()));
  actions_.push_back(Forget{event.session});
  Lose(event.session, reason);
  Advance();
}

void Machine::On(const TimerFired& event) {
  switch (event.timer.kind) {
    case TimerKind::kJoin:
      OnJoinTimer(event.timer.group);
      break;
    case TimerKind::kPlan:
      s_.plan.delay = false;
      StartPlan();
      break;
    case TimerKind::kPrepare:
      OnPrepareTimer();
      break;
    case TimerKind::kCatchUp:
      OnCatchUpTimer();
      break;
    case TimerKind::kStep:
      OnStepTimer(event.timer.group);
      break;
    case TimerKind::kFence:
      OnFenceTimer();
      break;
    case TimerKind::kRetry:
      OnRetryTimer(event.timer.group);
      break;
  }
  Advance();
}

void Machine::On(const Said& event) {
  if (Group* group = SteeredBy(event.session)) {
    ControlSaid(*group, event.message);
    Advance();
    return;
  }
  const Worker* worker = Find(event.session);
  if (worker == nullptr) return;
  const bool trainer = worker->group == kTrainers;
  const auto handle = [&](const auto& message) -> bool {
    using Message = std::decay_t<decltype(message)>;
    if constexpr (std::is_same_v<Message, protocol::Register>) {
      OnRegister(*worker, message);
    } else if constexpr (std::is_same_v<Message, protocol::Prepared>) {
      OnPrepared(*worker, message);
    } else if constexpr (std::is_same_v<Message, protocol::Failed>) {
      OnFailed(*worker, message);
    } else if constexpr (std::is_same_v<Message, protocol::Leave>) {
      // Whoever gives up after a failure should not hide it.
      const auto is_failure = [](const Status& status) {
        return !status.ok() && status.code() != Code::kCancelled;
      };
      const Status& own = FindGroup(worker->group)->last_error;
      const Status& before = is_failure(own) ? own : s_.roster.trainers().loss;
      const bool tells = is_failure(before);
      const Status reason(Code::kCancelled, StrCat(TextOf(*worker), " has left",
                                                   tells ? StrCat(", after: ", before.message())
                                                         : "; start it again to go on"));
      actions_.push_back(Forget{event.session});
      Lose(event.session, reason);
    } else if constexpr (std::is_same_v<Message, protocol::Heartbeat>) {
      return true;
    } else if constexpr (std::is_same_v<Message, protocol::Published>) {
      return trainer && (OnPublished(*worker, message), true);
    } else if constexpr (std::is_same_v<Message, protocol::Cancel>) {
      return trainer && (OnCancel(*worker, message), true);
    } else if constexpr (std::is_same_v<Message, protocol::LandingMap>) {
      Change(*worker)->landed = true;
      s_.plan.stale = s_.plan.stale || InPlan(*worker);
      return !trainer;
    } else if constexpr (std::is_same_v<Message, protocol::Granted>) {
      return !trainer && (OnGranted(*worker, message), true);
    } else if constexpr (std::is_same_v<Message, protocol::Ready>) {
      return !trainer && (OnReady(*worker, message), true);
    } else if constexpr (std::is_same_v<Message, protocol::SentDigests>) {
      OnSentDigests(*worker, message);
    } else if constexpr (std::is_same_v<Message, protocol::Committed>) {
      return !trainer && (OnCommitted(*worker, message), true);
    } else if constexpr (std::is_same_v<Message, protocol::Serving>) {
      return !trainer && (OnServing(*worker, message), true);
    } else if constexpr (std::is_same_v<Message, protocol::Suspended>) {
      return !trainer && (OnSuspended(*worker), true);
    } else if constexpr (std::is_same_v<Message, protocol::Aborted>) {
      return !trainer && (OnAborted(*worker, message), true);
    } else {
      return false;  // A Hello in the middle of a session.
    }
    return true;
  };
  const bool allowed = std::visit(handle, event.message);
  if (!allowed) {
    const Status reason(
        Code::kProtocol,
        StrCat(TextOf(*worker),
               " sent a message that its role does not send; use the same weightcast on all hosts"));
    RefuseWorker(event.session, reason);
  }
  Advance();
}

// --- Look-ups -----------------------------------------------------------------------------------

Group* Machine::SteeredBy(SessionId session) {
  const Group* group = s_.roster.SteeredBy(session);
  return group == nullptr ? nullptr : &Change(*group);
}

bool Machine::Whole(const Group& group) const {
  const bool uncontrolled = group.controlled && group.steering.session == 0;
  return Complete(group) && !uncontrolled && group.counts.ready == group.members;
}

bool Machine::AnyMember(const Group& group, const std::function<bool(const Worker&)>& is) const {
  return std::ranges::any_of(group.ranks,
                             [&](SessionId session) { return session != 0 && is(*Find(session)); });
}

protocol::WorkerName Machine::NameOf(const Worker& worker) const {
  const Group* group = FindGroup(worker.group);
  return {.role = worker.group == kTrainers ? protocol::Role::kTrainer : protocol::Role::kInference,
          .engine = group == nullptr ? std::string() : group->name,
          .rank = worker.rank};
}

std::string Machine::NameOf(const Group& group) const {
  return group.id == kTrainers ? "the trainers" : StrCat("engine ", group.name);
}

void Machine::TellAll(const std::vector<SessionId>& sessions, const protocol::ControllerMessage& message) {
  std::vector<SessionId> here;
  here.reserve(sessions.size());
  for (const SessionId session : sessions)
    if (Find(session) != nullptr) here.push_back(session);
  if (!here.empty()) actions_.push_back(SendAll{std::move(here), message});
}

void Machine::TellTrainers(const UpdateState& update, const protocol::ControllerMessage& message) {
  TellAll(update.trainers, message);
}

void Machine::TellSources(const protocol::ControllerMessage& message) { TellAll(s_.plan.sources, message); }

Version Machine::NewestOf(const Group& group) const {
  Version newest;
  for (const SessionId session : group.ranks)
    if (session != 0) newest = protocol::LaterOf(newest, Find(session)->newest);
  return newest;
}

bool Machine::TakesBack(const Group& group, const Version& version) const {
  return AnyMember(group, [&](const Worker& worker) { return TakesBack(worker, version); });
}

bool Machine::TakesBack(const Worker& rank, const Version& version) {
  const Version& newest = rank.newest;
  const bool unclear = newest.run == version.run && newest.origin != version.origin;
  return newest.number >= 0 && (protocol::RunAndNumber(version) < protocol::RunAndNumber(newest) || unclear);
}

EngineState Machine::EngineStateOf(const Group& group) const {
  static constexpr EngineState kLeastFirst[] = {
      EngineState::kFailed, EngineState::kSuspended, EngineState::kJoining, EngineState::kUpdating,
      EngineState::kReady,  EngineState::kCommitted, EngineState::kServing};
  if (!Complete(group)) return group.loss.ok() ? EngineState::kJoining : EngineState::kFailed;
  for (const EngineState state : kLeastFirst)
    if (group.counts.states[static_cast<size_t>(state)] != 0) return state;
  return EngineState::kJoining;
}

}  // namespace weightcast::control
