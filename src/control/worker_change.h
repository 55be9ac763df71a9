#pragma once

#include <cstdint>

#include "control/roster.h"
#include "protocol/messages.h"

namespace weightcast::control {

/// The state that a rank tells with what it serves; what it was in is void.
[[nodiscard]] protocol::EngineState StateToldBy(protocol::EngineState state, const Version& version);

/// What rules change of a worker in the roster, each a fact that it has told, or that it is being told. Made
/// for one statement, as Roster::Edit. Who is here is membership's to change.
class WorkerChange {
 public:
  WorkerChange(Roster& roster, const Worker& worker) : edit_(roster.Change(worker)) {}

  void SetConnected(bool connected) { edit_->connected = connected; }
  /// What it says of its tensors. Only what it serves counts: an update it was in is void.
  void SetRegistered(const protocol::Register& message);
  void SetLanded() { edit_->landed = true; }
  void SetSuspended();
  void SetPlanned(uint32_t epoch) { edit_->planned = epoch; }
  void SetPrepared(uint32_t epoch) { edit_->prepared = epoch; }

  // --- A trainer ---

  /// It waits for an answer.
  void Offer(const protocol::Published& message);
  /// It has its answer; with `keeps` its bytes can still be had.
  void EndWaiting(bool keeps);
  /// Its update has not opened after all.
  void WaitAgain() { edit_->waiting = true; }

  // --- A rank in an update ---

  void SetGranted();
  void SetState(protocol::EngineState state) { edit_->state = state; }
  /// Its memory wholly holds the version.
  void SetHolds(const Version& version) { edit_->holds = version; }
  /// It is told to serve the version, which is never taken back.
  void SetTold(const protocol::UpdateId& update, const Version& version);
  /// It says that it does.
  void SetServing();
  /// It is told to abort, and not to be granted again before it has fenced.
  void BeginFence(const protocol::UpdateId& update) { edit_->fencing = update; }
  void EndFence() { edit_->fencing.reset(); }
  /// What is left after an abort.
  void SetAborted(const protocol::Aborted& message);

 private:
  Roster::Edit edit_;
};

}  // namespace weightcast::control
