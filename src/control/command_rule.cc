#include "control/command_rule.h"

#include <string>
#include <variant>

#include "control/command_state.h"
#include "control/group_change.h"
#include "control/roster_facts.h"

namespace weightcast::control {

using protocol::Command;

// --- It comes and goes ----------------------------------------------------------------------------------

void CommandRule::Attach(SessionId session, const protocol::Hello& hello) {
  const Group& group = rules_.membership->GroupFor(hello);
  const Control before = group.control;
  const std::string name = protocol::ToString(hello.name);
  if (before.session != 0 && before.connected && before.incarnation != hello.incarnation) {
    const Status reason =
        Error(Code::kInvalidArgument, name,
              " is already here in another process; an engine has one EngineControl: end one of the two "
              "(the controller's log has the host of the first: \"joined from\")");
    out_.Log(LogLevel::kWarning, "refused ", name, " of ", hello.host, ": ", reason.message());
    out_.Add(control::Refuse{session, reason});
    return;
  }
  if (before.session != 0) {
    out_.Add(Forget{before.session});
    Lose(group, Error(Code::kPeerDead, name,
                      " is lost: its process was started again; publish again with the new process"));
  }
  GroupChange(roster_, group.id).SetControlled();
  roster_.SetControl(group, {.session = session, .incarnation = hello.incarnation});
  out_.Send(session,
            protocol::Welcome{
                .term = config_.term, .run = rules_.runs->run(), .lease_seconds = Seconds(config_.lease)});
  if (group.members != 0) out_.Add(SendAll{MembersOf(group), protocol::Controlled{}});
  out_.Log(LogLevel::kInfo, name, " joined from ", hello.host);
}

void CommandRule::OnGone(const Group& group, const Status& reason) {
  out_.Add(Forget{group.control.session});
  Lose(group, Error(reason.code(), "the control of engine ", group.name, " is lost: ", reason.message()));
}

void CommandRule::SetLastError(const Group& group, const Status& reason) {
  GroupChange(roster_, group.id).SetLastError(reason);
  rules_.last_error = reason;
}

void CommandRule::Lose(const Group& group, const Status& reason) {
  roster_.SetControl(group, {});
  state_.last.Remove(group.id);
  rules_.planning->Unplan(group.id, /*sleeps=*/false);
  SetLastError(group, reason);
  out_.LogLoss(reason);
  // To the publisher the end of another is a failure.
  const Code code = reason.code() == Code::kCancelled ? Code::kUnavailable : reason.code();
  rules_.engines->CommandFailed(group.id, {code, reason.message()});
}

void CommandRule::OnMessage(const Group& group, const protocol::WorkerMessage& message) {
  const SessionId session = group.control.session;
  const std::string name = StrCat("the control of engine ", group.name);
  if (const auto* result = std::get_if<protocol::EngineCommandResult>(&message))
    return OnResult(group, *result);
  if (std::holds_alternative<protocol::Heartbeat>(message)) return;
  if (std::holds_alternative<protocol::Leave>(message)) {
    out_.Add(Forget{session});
    return Lose(group,
                Error(Code::kCancelled, name, " has left; start the engine's front end again to go on"));
  }
  const Status reason =
      Error(Code::kProtocol, name, " sent ", protocol::NameOf(message),
            ", a message that its role does not send; use the same weightcast on all hosts");
  out_.Add(control::Refuse{session, reason});
  Lose(group, reason);
}

// --- Commands ---------------------------------------------------------------------------------------------

void CommandRule::Send(const Group& group, Command command, const Version& version, const Status& reason) {
  LastCommand& order = state_.last.Edit(group.id);
  order.command = command;
  order.version = version;
  order.done = order.failed = false;
  out_.Send(group.control.session,
            protocol::EngineCommand{
                .order = ++order.order, .command = command, .version = version, .reason = reason});
}

CommandRule::Answer CommandRule::Ask(const Group& group, Command command, const Version& version) {
  if (!group.controlled) return Answer::kDone;
  if (group.control.session == 0) return Answer::kGone;
  const LastCommand& last = state_.last.Of(group.id);
  const bool asked = last.command == command && last.version == version && !last.failed;
  if (asked && last.done) return Answer::kDone;
  out_.Arm(TimerKind::kStep, group.id, config_.commit_timeout);
  if (!asked) Send(group, command, version);
  return Answer::kAwaited;
}

void CommandRule::OnResult(const Group& group, const protocol::EngineCommandResult& message) {
  const LastCommand& last = state_.last.Of(group.id);
  if (message.order != last.order || last.done || last.failed) return;
  LastCommand& order = state_.last.Edit(group.id);
  order.done = message.status.ok();
  order.failed = !order.done;
  order.overdue = false;
  if (order.done) return rules_.engines->CommandDone(group.id);
  const Status reason = Error(message.status.code(), "the control of engine ", group.name, " cannot ",
                              protocol::NameOf(order.command), ": ", message.status.message());
  SetLastError(group, reason);
  out_.Log(LogLevel::kError, reason.message());
  rules_.engines->CommandFailed(group.id, reason);
}

Status CommandRule::Overdue(const Group& group) const {
  const LastCommand& order = state_.last.Of(group.id);
  if (!order.overdue) return Status::Ok();
  return Error(Code::kTimedOut, "the control of engine ", group.name,
               " has not answered since it was asked to ", protocol::NameOf(order.command),
               "; see the log of the engine's front end");
}

Status CommandRule::TimedOut(const Group& group) {
  LastCommand& order = state_.last.Edit(group.id);
  order.overdue = true;
  const Status reason =
      Error(Code::kTimedOut, "the control of engine ", group.name, " has not answered the command ",
            protocol::NameOf(order.command), " for ", Seconds(config_.commit_timeout),
            " s (setting commit_timeout); see the log of the engine's front end");
  SetLastError(group, reason);
  out_.Log(LogLevel::kWarning, reason.message());
  return reason;
}

void CommandRule::CommandIdle() {
  for (const GroupId id : roster_.touched().Among(roster_.groups())) {
    const Group& group = *roster_.FindGroup(id);
    if (group.control.session == 0 || IsFencing(group) || rules_.engines->IsBusy(id)) continue;
    const LastCommand& last = state_.last.Of(id);
    const Version version = group.served;
    const Command command = version.number >= 0 ? Command::kResume : Command::kDrain;
    const bool known = last.order != 0 || !IsWhole(group);  // It may have outlived another controller.
    if (last.command == command && last.version == version && known) continue;
    const Status reason = command == Command::kResume ? Status::Ok()
                          : group.last_error.ok()     ? Error(Code::kUnavailable, "engine ", group.name,
                                                              " serves no version; let trainers publish")
                                                      : group.last_error;
    roster_.touched().Add(id);
    Send(group, command, version, reason);
  }
}

}  // namespace weightcast::control
