#include "control/worker_change.h"

namespace weightcast::control {

using protocol::EngineState;

EngineState StateToldBy(EngineState state, const Version& version) {
  const bool kept = state == EngineState::kJoining || state == EngineState::kSuspended;
  return version.number >= 0 ? EngineState::kServing : kept ? state : EngineState::kFailed;
}

void WorkerChange::SetRegistered(const protocol::Register& message) {
  edit_->registered = true;
  edit_->landed = false;
  edit_->hold = false;  // What a trainer held is not in this memory.
  if (edit_->group == kTrainers) return;
  edit_->landing = message.landing;
  edit_->parts = message.parts;
  edit_->shares = message.shares;
  edit_->holds = message.landed;
  edit_->newest = protocol::LaterOf(protocol::LaterOf(edit_->newest, message.version), message.newest);
  edit_->version = message.version;
  edit_->state = StateToldBy(message.state, message.version);
}

void WorkerChange::SetSuspended() {
  edit_->registered = edit_->landed = false;
  edit_->state = EngineState::kSuspended;
  edit_->version = edit_->holds = {};
}

// --- A trainer ------------------------------------------------------------------------------------------

void WorkerChange::Offer(const protocol::Published& message) {
  edit_->offered = message.number;
  edit_->label = message.label;
  edit_->hold = message.hold;
  edit_->waiting = true;
}

void WorkerChange::EndWaiting(bool keeps) {
  edit_->waiting = false;
  if (!keeps) edit_->offered = -1;
}

// --- A rank in an update --------------------------------------------------------------------------------

void WorkerChange::SetGranted() {
  edit_->holds = {};
  edit_->state = EngineState::kUpdating;
}

void WorkerChange::SetTold(const protocol::UpdateId& update, const Version& version) {
  edit_->told = update;
  edit_->told_version = version;
  edit_->newest = protocol::LaterOf(edit_->newest, version);
}

void WorkerChange::SetServing() {
  edit_->told.reset();
  edit_->version = edit_->told_version;
  if (edit_->state == EngineState::kCommitted) edit_->state = EngineState::kServing;
}

void WorkerChange::SetAborted(const protocol::Aborted& message) {
  const bool serves = !message.lost && edit_->version.number >= 0;
  if (edit_->state != EngineState::kSuspended)
    edit_->state = message.lost ? EngineState::kFailed
                   : serves     ? EngineState::kServing
                                : EngineState::kJoining;
  if (message.lost) edit_->version = {};
  edit_->holds = message.landed;
}

}  // namespace weightcast::control
