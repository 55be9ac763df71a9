#include "tests/reference/controller_machine.h"

#include <algorithm>

#include "tests/reference/machine.h"

namespace weightcast::reference {

using protocol::EngineState;

MachineState InitialState() {
  MachineState state;
  state.groups.push_back(Group{});
  return state;
}

void Step(const MachineConfig& config, MachineState& state, const Event& event, Actions& actions) {
  std::visit([&](const auto& what) { Machine(config, state, actions).On(what); }, event);
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
  Worker* worker = Find(event.session);
  if (worker == nullptr) return;
  worker->connected = false;
  Log(LogLevel::kInfo, TextOf(*worker), ": connection broken; lost in ", Seconds(config_.lease),
      " s unless it comes back");
}

void Machine::On(const Resumed& event) {
  if (Group* group = SteeredBy(event.session)) group->steering.connected = true;
  Worker* worker = Find(event.session);
  if (worker == nullptr) return;
  worker->connected = true;
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
  Worker* worker = Find(event.session);
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
      const Status& before = is_failure(own) ? own : s_.groups.front().loss;
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
      worker->landed = true;
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

const Worker* Machine::Find(SessionId session) const {
  const auto at =
      std::lower_bound(s_.workers.begin(), s_.workers.end(), session,
                       [](const Worker& worker, SessionId wanted) { return worker.session < wanted; });
  return at != s_.workers.end() && at->session == session ? &*at : nullptr;
}
Worker* Machine::Find(SessionId session) {
  return const_cast<Worker*>(static_cast<const Machine*>(this)->Find(session));
}

const Group* Machine::FindGroup(GroupId id) const {
  const auto at = std::lower_bound(s_.groups.begin(), s_.groups.end(), id,
                                   [](const Group& group, GroupId wanted) { return group.id < wanted; });
  return at != s_.groups.end() && at->id == id ? &*at : nullptr;
}
Group* Machine::FindGroup(GroupId id) {
  return const_cast<Group*>(static_cast<const Machine*>(this)->FindGroup(id));
}

bool Machine::Whole(const Group& group) const {
  const bool uncontrolled = group.controlled && group.steering.session == 0;
  return Complete(group) && !uncontrolled &&
         std::all_of(s_.workers.begin(), s_.workers.end(), [&](const Worker& worker) {
           return worker.group != group.id || (worker.registered && (group.id == kTrainers || worker.landed));
         });
}

bool Machine::IsSuspended(const Group& group) const {
  return std::any_of(s_.workers.begin(), s_.workers.end(), [&](const Worker& worker) {
    return worker.group == group.id && worker.state == EngineState::kSuspended;
  });
}

bool Machine::IsFencing(const Group& group) const {
  return std::any_of(s_.workers.begin(), s_.workers.end(), [&](const Worker& worker) {
    return worker.group == group.id && worker.fencing.has_value();
  });
}

std::vector<SessionId> Machine::RanksOf(const Group& group) const {
  std::vector<SessionId> ranks(group.world_size);
  for (const Worker& worker : s_.workers)
    if (worker.group == group.id) ranks[worker.rank] = worker.session;
  return ranks;
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

void Machine::TellTrainers(const UpdateState& update, const protocol::ControllerMessage& message) {
  for (const SessionId session : update.trainers)
    if (Find(session) != nullptr) Tell(session, message);
}

void Machine::TellSources(const protocol::ControllerMessage& message) {
  for (const SessionId session : s_.plan.sources)
    if (Find(session) != nullptr) Tell(session, message);
}

Version Machine::EngineVersion(const Group& group) const {
  std::optional<Version> common;
  for (const Worker& worker : s_.workers) {
    if (worker.group != group.id) continue;
    if (worker.state != EngineState::kServing || (common && *common != worker.version)) return {};
    common = worker.version;
  }
  return common && Complete(group) ? *common : Version{};
}

Version Machine::NewestOf(const Group& group) const {
  Version newest;
  for (const Worker& worker : s_.workers)
    if (worker.group == group.id) newest = protocol::LaterOf(newest, worker.newest);
  return newest;
}

bool Machine::TakesBack(const Group& group, const Version& version) const {
  return std::any_of(s_.workers.begin(), s_.workers.end(), [&](const Worker& worker) {
    const Version& newest = worker.newest;
    const bool unclear = newest.run == version.run && newest.origin != version.origin;
    return worker.group == group.id && newest.number >= 0 &&
           (protocol::RunAndNumber(version) < protocol::RunAndNumber(newest) || unclear);
  });
}

EngineState Machine::EngineStateOf(const Group& group) const {
  static constexpr EngineState kLeastFirst[] = {
      EngineState::kFailed, EngineState::kSuspended, EngineState::kJoining, EngineState::kUpdating,
      EngineState::kReady,  EngineState::kCommitted, EngineState::kServing};
  if (!Complete(group)) return group.loss.ok() ? EngineState::kJoining : EngineState::kFailed;
  for (const EngineState state : kLeastFirst) {
    const bool any = std::any_of(s_.workers.begin(), s_.workers.end(), [&](const Worker& worker) {
      return worker.group == group.id && worker.state == state;
    });
    if (any) return state;
  }
  return EngineState::kJoining;
}

}  // namespace weightcast::reference
