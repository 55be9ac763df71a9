#include <algorithm>
#include <utility>

#include "control/machine.h"

// Engines with an EngineControl: paused before their tensors change, let go on once all of them serve one
// version, and kept from requests while they have none.
namespace weightcast::control {

using protocol::Move;

// --- It comes and goes ----------------------------------------------------------------------------------

void Machine::AttachControl(SessionId session, const protocol::Hello& hello) {
  Group& group = GroupFor(hello);
  const Steering before = group.steering;
  const std::string name = protocol::ToString(hello.name);
  if (before.session != 0 && before.connected && before.incarnation != hello.incarnation) {
    const Status reason(Code::kInvalidArgument, StrCat(name,
                                                       " is already here in another process; an engine has "
                                                       "one EngineControl: end one of these two processes"));
    Log(LogLevel::kWarning, "refused ", name, " of ", hello.host, ": ", reason.message());
    actions_.push_back(Refuse{session, reason});
    return;
  }
  if (before.session != 0) {
    actions_.push_back(Forget{before.session});
    LoseControl(
        group,
        {Code::kPeerDead,
         StrCat(name, " is lost: its process was started again; the next update uses the new process")});
  }
  group.controlled = true;
  Steering steering;
  steering.session = session;
  steering.incarnation = hello.incarnation;
  s_.roster.SetControl(group, steering);
  Tell(session,
       protocol::Welcome{.term = config_.term, .run = s_.run, .lease_seconds = Seconds(config_.lease)});
  TellAll(s_.roster.MembersOf(group), protocol::Controlled{});
  Log(LogLevel::kInfo, name, " joined from ", hello.host);
}

void Machine::LoseControl(Group& group, const Status& reason) {
  s_.roster.SetControl(group, {});
  group.planned = false;
  group.in_plan = 0;
  group.last_error = s_.last_error = reason;
  const bool polite = reason.code() == Code::kCancelled;
  LogAndCount(polite ? "control.workers_left" : "control.workers_lost",
              polite ? LogLevel::kInfo : LogLevel::kWarning, reason.message());
  // To the publisher the end of another is a failure.
  const Code code = polite ? Code::kUnavailable : reason.code();
  if (Target* target = TargetOf(group.id)) SteerFailed(*target, {code, reason.message()});
}

void Machine::ControlSaid(Group& group, const protocol::WorkerMessage& message) {
  const SessionId session = group.steering.session;
  const std::string name = StrCat("the control of engine ", group.name);
  if (const auto* steered = std::get_if<protocol::Steered>(&message)) return OnSteered(group, *steered);
  if (std::holds_alternative<protocol::Heartbeat>(message)) return;
  if (std::holds_alternative<protocol::Leave>(message)) {
    actions_.push_back(Forget{session});
    return LoseControl(
        group, {Code::kCancelled, StrCat(name, " has left; start the engine's front end again to go on")});
  }
  const Status reason(
      Code::kProtocol,
      StrCat(name, " sent a message that its role does not send; use the same weightcast on all hosts"));
  actions_.push_back(Refuse{session, reason});
  LoseControl(group, reason);
}

// --- Orders ---------------------------------------------------------------------------------------------

void Machine::Order(Group& group, Move move, const Version& version, const Status& reason) {
  Steering& control = group.steering;
  control.move = move;
  control.version = version;
  control.done = control.failed = false;
  Tell(control.session,
       protocol::Steer{.order = ++control.order, .move = move, .version = version, .reason = reason});
}

/// In an update: `step` lasts until it is done, no time at all in an engine that has no EngineControl.
void Machine::OrderFor(Target& target, EngineStep step, Move move, const Version& version) {
  Group& group = ChangeGroup(target.group);
  const Steering& control = group.steering;
  SetStep(target, step);
  if (!group.controlled) return GoOn(target);
  if (control.session == 0)
    return SteerFailed(target, {Code::kUnavailable, StrCat("the control of engine ", group.name,
                                                           " is gone; start the engine's front end again")});
  const bool asked = control.move == move && control.version == version && !control.failed;
  if (asked && control.done) return GoOn(target);
  group.grant_timer = false;
  Arm(TimerKind::kStep, target.group, config_.commit_timeout);
  if (!asked) Order(group, move, version);
}

void Machine::OnSteered(Group& group, const protocol::Steered& message) {
  Steering& control = group.steering;
  if (message.order != control.order || control.done || control.failed) return;
  control.done = message.status.ok();
  control.failed = !control.done;
  control.overdue = false;
  Target* target = TargetOf(group.id);
  if (control.done) return target == nullptr ? void() : GoOn(*target);
  const Status reason(message.status.code(),
                      StrCat("the control of engine ", group.name, " cannot ", protocol::NameOf(control.move),
                             ": ", message.status.message()));
  group.last_error = s_.last_error = reason;
  Log(LogLevel::kError, reason.message());
  if (target != nullptr) SteerFailed(*target, reason);
}

/// What the engine's step waited for, if it waited, is done.
void Machine::GoOn(Target& target) {
  switch (target.step) {
    case EngineStep::kPausing:
      DisarmStep(target.group);
      return AskForGrants(target);
    case EngineStep::kHalting:
      return TellCommit(target);
    case EngineStep::kSettling:
      return TellServe(target);
    case EngineStep::kAdmitting:
      return Enter(target, EngineStep::kDone);
    default:
      return;
  }
}

/// The engine is out if it was waited for; a Serve that has gone out is never taken back.
void Machine::SteerFailed(Target& target, const Status& reason) {
  switch (target.step) {
    case EngineStep::kPausing:
    case EngineStep::kHalting:
    case EngineStep::kSettling:
      return EngineOut(target, reason);
    case EngineStep::kAdmitting:
      return Enter(target, EngineStep::kDone);
    default:
      return;
  }
}

void Machine::OnSteerTimer(Target& target) {
  Group& group = ChangeGroup(target.group);
  group.steering.overdue = true;
  const Status reason(Code::kTimedOut, StrCat("the control of engine ", group.name,
                                              " has not answered: ", protocol::NameOf(group.steering.move),
                                              " (", Seconds(config_.commit_timeout),
                                              " s, commit_timeout); see the log of the engine's front end"));
  group.last_error = s_.last_error = reason;
  Log(LogLevel::kWarning, reason.message());
  SteerFailed(target, reason);
}

/// Outside updates: engines that serve one version get requests, others do not.
void Machine::SteerIdle() {
  for (const GroupId id : s_.roster.Touched()) {
    const Group& group = *FindGroup(id);
    const Steering& control = group.steering;
    if (control.session == 0 || IsFencing(group)) continue;
    const Target* target = TargetOf(group.id);
    const bool busy =
        target != nullptr && target->step != EngineStep::kOut && target->step != EngineStep::kDone;
    if (busy) continue;
    const Version version = group.served;
    const Move move = version.number >= 0 ? Move::kAdmit : Move::kEvict;
    const bool known = control.order != 0 || !Whole(group);  // It may have outlived another controller.
    if (control.move == move && control.version == version && known) continue;
    const Status reason =
        move == Move::kAdmit ? Status::Ok()
        : group.last_error.ok()
            ? Status(Code::kUnavailable,
                     StrCat("engine ", group.name, " serves no version; it gets one with the next update"))
            : group.last_error;
    Order(Change(group), move, version, reason);
  }
}

}  // namespace weightcast::control
