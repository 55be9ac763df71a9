#include "control/roster_changes.h"

namespace weightcast::control {

using protocol::EngineState;

// --- A worker -------------------------------------------------------------------------------------------

void SetConnected(Roster& roster, const Worker& worker, bool connected) {
  roster.Change(worker)->connected = connected;
}

EngineState StateToldBy(EngineState state, const Version& version) {
  const bool kept = state == EngineState::kJoining || state == EngineState::kSuspended;
  return version.number >= 0 ? EngineState::kServing : kept ? state : EngineState::kFailed;
}

void SetRegistered(Roster& roster, const Worker& worker, const protocol::Register& message) {
  auto edit = roster.Change(worker);
  edit->registered = true;
  edit->landed = false;
  edit->hold = false;  // What a trainer held is not in this memory.
  if (worker.group == kTrainers) return;
  edit->landing = message.landing;
  edit->parts = message.parts;
  edit->shares = message.shares;
  edit->holds = message.landed;
  edit->newest = protocol::LaterOf(protocol::LaterOf(worker.newest, message.version), message.newest);
  edit->version = message.version;
  edit->state = StateToldBy(message.state, message.version);
}

void SetLanded(Roster& roster, const Worker& rank) { roster.Change(rank)->landed = true; }

void SetSuspended(Roster& roster, const Worker& rank) {
  auto edit = roster.Change(rank);
  edit->registered = edit->landed = false;
  edit->state = EngineState::kSuspended;
  edit->version = edit->holds = {};
}

void SetPlanned(Roster& roster, const Worker& worker, uint32_t epoch) {
  roster.Change(worker)->planned = epoch;
}

void SetPrepared(Roster& roster, const Worker& worker, uint32_t epoch) {
  roster.Change(worker)->prepared = epoch;
}

// --- A trainer ------------------------------------------------------------------------------------------

void Offer(Roster& roster, const Worker& trainer, const protocol::Published& message) {
  auto edit = roster.Change(trainer);
  edit->offered = message.number;
  edit->label = message.label;
  edit->hold = message.hold;
  edit->waiting = true;
}

void EndWaiting(Roster& roster, const Worker& trainer, bool keeps) {
  auto edit = roster.Change(trainer);
  edit->waiting = false;
  if (!keeps) edit->offered = -1;
}

void WaitAgain(Roster& roster, const Worker& trainer) { roster.Change(trainer)->waiting = true; }

// --- A rank in an update --------------------------------------------------------------------------------

void SetGranted(Roster& roster, const Worker& rank) {
  auto edit = roster.Change(rank);
  edit->holds = {};
  edit->state = EngineState::kUpdating;
}

void SetState(Roster& roster, const Worker& rank, EngineState state) { roster.Change(rank)->state = state; }

void SetHolds(Roster& roster, const Worker& rank, const Version& version) {
  roster.Change(rank)->holds = version;
}

void SetTold(Roster& roster, const Worker& rank, const protocol::UpdateId& update, const Version& version) {
  auto edit = roster.Change(rank);
  edit->told = update;
  edit->told_version = version;
  edit->newest = protocol::LaterOf(rank.newest, version);
}

void SetServing(Roster& roster, const Worker& rank) {
  auto edit = roster.Change(rank);
  edit->told.reset();
  edit->version = rank.told_version;
  if (rank.state == EngineState::kCommitted) edit->state = EngineState::kServing;
}

void BeginFence(Roster& roster, const Worker& rank, const protocol::UpdateId& update) {
  roster.Change(rank)->fencing = update;
}

void EndFence(Roster& roster, const Worker& rank) { roster.Change(rank)->fencing.reset(); }

void SetAborted(Roster& roster, const Worker& rank, const protocol::Aborted& message) {
  const bool serves = !message.lost && rank.version.number >= 0;
  auto edit = roster.Change(rank);
  if (rank.state != EngineState::kSuspended)
    edit->state = message.lost ? EngineState::kFailed
                  : serves     ? EngineState::kServing
                               : EngineState::kJoining;
  if (message.lost) edit->version = {};
  edit->holds = message.landed;
}

// --- A group --------------------------------------------------------------------------------------------

void SetLastError(Roster& roster, GroupId group, const Status& error) {
  roster.Change(*roster.FindGroup(group)).last_error = error;
}

void SetLoss(Roster& roster, GroupId group, const Status& loss) {
  roster.Change(*roster.FindGroup(group)).loss = loss;
}

void SetFenceOverdue(Roster& roster, GroupId group, bool overdue) {
  roster.Change(*roster.FindGroup(group)).fence_overdue = overdue;
}

void SetControlled(Roster& roster, GroupId group) {
  roster.Change(*roster.FindGroup(group)).controlled = true;
}

void SetControlConnected(Roster& roster, GroupId group, bool connected) {
  roster.Change(*roster.FindGroup(group)).control.connected = connected;
}

}  // namespace weightcast::control
