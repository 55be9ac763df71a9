#include "control/machine.h"

#include <variant>

#include "control/group_change.h"

namespace weightcast::control {

Machine::Machine(const MachineConfig& config, MachineState& state, Actions& actions)
    : roster_(state.roster),
      out_(actions),
      context_{.config = config, .roster = state.roster, .out = out_, .last_error = state.last_error},
      membership_(context_, state.membership),
      runs_(context_, state.runs),
      planning_(context_, state.plan),
      publications_(context_, state.publications),
      commands_(context_, state.commands),
      opening_(context_, state.opening),
      updates_(context_, state.updates),
      engines_(context_, state.engines),
      ranks_(context_, state.ranks),
      deadlines_(context_, state.deadlines),
      repair_(context_, state.repair) {
  context_.membership = &membership_;
  context_.runs = &runs_;
  context_.planning = &planning_;
  context_.publications = &publications_;
  context_.commands = &commands_;
  context_.opening = &opening_;
  context_.updates = &updates_;
  context_.engines = &engines_;
  context_.ranks = &ranks_;
  context_.deadlines = &deadlines_;
  context_.repair = &repair_;
}

void Machine::Advance() {
  updates_.Advance();
  updates_.SupersedeUnstarted();
  updates_.LeaveLate();
  membership_.ForgetEmptyGroups();
  publications_.FailHopeless();
  if (!updates_.open()) {
    planning_.Replan();
    opening_.TryOpen();
    updates_.Advance();  // One without targets ends as it opens.
  }
  commands_.CommandIdle();
  membership_.ArmJoinTimers();
  publications_.ArmCatchUp();
}

const Group* Machine::ControlledBy(SessionId session) {
  const Group* group = roster_.ControlledBy(session);
  if (group != nullptr) roster_.touched().Add(group->id);
  return group;
}

// --- Sessions -------------------------------------------------------------------------------------------

void Machine::On(const Attached& event) {
  membership_.OnAttached(event);
  Advance();
}

void Machine::On(const StreamBroken& event) {
  if (const Group* group = ControlledBy(event.session))
    return GroupChange(roster_, group->id).SetControlConnected(false);
  if (const Worker* worker = roster_.Find(event.session)) membership_.OnBroken(*worker);
}

void Machine::On(const Resumed& event) {
  if (const Group* group = ControlledBy(event.session))
    return GroupChange(roster_, group->id).SetControlConnected(true);
  if (const Worker* worker = roster_.Find(event.session)) membership_.OnResumed(*worker);
}

void Machine::On(const Gone& event) {
  if (const Group* group = ControlledBy(event.session)) {
    commands_.OnGone(*group, event.reason);
  } else if (const Worker* worker = roster_.Find(event.session)) {
    membership_.OnGone(*worker, event.reason);
  } else {
    return;
  }
  Advance();
}

// --- Timers and plans -----------------------------------------------------------------------------------

void Machine::On(const TimerFired& event) {
  const GroupId group = event.timer.group;
  switch (event.timer.kind) {
    case TimerKind::kJoin:
      membership_.OnJoinTimer(group);
      break;
    case TimerKind::kPlan:
      planning_.OnPlanTimer();
      break;
    case TimerKind::kPrepare:
      planning_.OnPrepareTimer();
      break;
    case TimerKind::kCatchUp:
      publications_.OnCatchUpTimer();
      break;
    case TimerKind::kStep:
      deadlines_.OnStepTimer(group);
      break;
    case TimerKind::kFence:
      opening_.OnFenceTimer();
      break;
    case TimerKind::kRetry:
      planning_.OnRetryTimer(group);
      break;
  }
  Advance();
}

void Machine::On(const PlanMade& event) {
  if (planning_.OnPlanMade(event.epoch)) Advance();
}

void Machine::On(const PlanFailed& event) {
  if (planning_.OnPlanFailed(event)) Advance();
}

// --- Messages -------------------------------------------------------------------------------------------

void Machine::On(const MessageReceived& event) {
  if (const Group* group = ControlledBy(event.session)) {
    commands_.OnMessage(*group, event.message);
  } else if (const Worker* worker = roster_.Find(event.session)) {
    if (!OnMessage(*worker, event.message))
      membership_.RefuseMessage(*worker, protocol::NameOf(event.message));
  } else {
    return;
  }
  Advance();
}

bool Machine::OnMessage(const Worker& worker, const protocol::WorkerMessage& message) {
  if (std::holds_alternative<protocol::Heartbeat>(message)) return true;
  if (const auto* what = std::get_if<protocol::Register>(&message)) {
    membership_.OnRegister(worker, *what);
  } else if (std::holds_alternative<protocol::Leave>(message)) {
    membership_.OnLeave(worker);
  } else if (const auto* prepared = std::get_if<protocol::Prepared>(&message)) {
    planning_.OnPrepared(worker, *prepared);
  } else if (const auto* failed = std::get_if<protocol::Failed>(&message)) {
    // Without an update: it cannot make the connections of the plan.
    failed->update.sequence == 0 ? planning_.OnPrepareFailed(worker, *failed)
                                 : updates_.OnFailed(worker, *failed);
  } else if (const auto* digests = std::get_if<protocol::SentDigests>(&message)) {
    ranks_.OnSentDigests(worker, *digests);
  } else {
    return worker.group == kTrainers ? OnTrainerMessage(worker, message) : OnRankMessage(worker, message);
  }
  return true;
}

bool Machine::OnTrainerMessage(const Worker& trainer, const protocol::WorkerMessage& message) {
  if (const auto* published = std::get_if<protocol::Published>(&message)) {
    publications_.OnPublished(trainer, *published);
  } else if (const auto* cancel = std::get_if<protocol::Cancel>(&message)) {
    publications_.OnCancel(trainer, *cancel);
  } else {
    return false;
  }
  return true;
}

bool Machine::OnRankMessage(const Worker& rank, const protocol::WorkerMessage& message) {
  if (std::holds_alternative<protocol::LandingMap>(message)) {
    membership_.OnLandingMap(rank);
  } else if (std::holds_alternative<protocol::Suspended>(message)) {
    membership_.OnSuspended(rank);
  } else if (const auto* granted = std::get_if<protocol::Granted>(&message)) {
    ranks_.OnGranted(rank, *granted);
  } else if (const auto* ready = std::get_if<protocol::Ready>(&message)) {
    ranks_.OnReady(rank, *ready);
  } else if (const auto* committed = std::get_if<protocol::Committed>(&message)) {
    ranks_.OnCommitted(rank, *committed);
  } else if (const auto* serving = std::get_if<protocol::Serving>(&message)) {
    ranks_.OnServing(rank, *serving);
  } else if (const auto* aborted = std::get_if<protocol::Aborted>(&message)) {
    ranks_.OnAborted(rank, *aborted);
  } else {
    return false;  // A Hello in the middle of a session.
  }
  return true;
}

}  // namespace weightcast::control
