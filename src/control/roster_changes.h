#pragma once

#include <cstdint>

#include "control/roster.h"
#include "protocol/messages.h"
#include "weightcast/status.h"

/// What rules change in the roster, each a fact that a worker has told, or that it is being told. Who is here
/// is membership's to change; Roster itself has SetControl and BeginEpoch.
namespace weightcast::control {

// --- A worker -------------------------------------------------------------------------------------------

void SetConnected(Roster& roster, const Worker& worker, bool connected);
/// What it says of its tensors. Only what it serves counts: an update it was in is void.
void SetRegistered(Roster& roster, const Worker& worker, const protocol::Register& message);
void SetLanded(Roster& roster, const Worker& rank);
void SetSuspended(Roster& roster, const Worker& rank);
void SetPlanned(Roster& roster, const Worker& worker, uint32_t epoch);
void SetPrepared(Roster& roster, const Worker& worker, uint32_t epoch);
/// The state that a rank tells with what it serves; what it was in is void.
[[nodiscard]] protocol::EngineState StateToldBy(protocol::EngineState state, const Version& version);

// --- A trainer ------------------------------------------------------------------------------------------

/// It waits for an answer.
void Offer(Roster& roster, const Worker& trainer, const protocol::Published& message);
/// It has its answer; with `keeps` its bytes can still be had.
void EndWaiting(Roster& roster, const Worker& trainer, bool keeps);
/// Its update has not opened after all.
void WaitAgain(Roster& roster, const Worker& trainer);

// --- A rank in an update --------------------------------------------------------------------------------

void SetGranted(Roster& roster, const Worker& rank);
void SetState(Roster& roster, const Worker& rank, protocol::EngineState state);
/// Its memory wholly holds the version.
void SetHolds(Roster& roster, const Worker& rank, const Version& version);
/// It is told to serve the version, which is never taken back.
void SetTold(Roster& roster, const Worker& rank, const protocol::UpdateId& update, const Version& version);
/// It says that it does.
void SetServing(Roster& roster, const Worker& rank);
/// It is told to abort, and not to be granted again before it has fenced.
void BeginFence(Roster& roster, const Worker& rank, const protocol::UpdateId& update);
void EndFence(Roster& roster, const Worker& rank);
/// What is left after an abort.
void SetAborted(Roster& roster, const Worker& rank, const protocol::Aborted& message);

// --- A group --------------------------------------------------------------------------------------------

void SetLastError(Roster& roster, GroupId group, const Status& error);
/// Why a member of the complete group was lost; ok: it has been replaced, or there is nothing to wait for.
void SetLoss(Roster& roster, GroupId group, const Status& loss);
void SetFenceOverdue(Roster& roster, GroupId group, bool overdue);
/// It has an EngineControl, be it here or not.
void SetControlled(Roster& roster, GroupId group);
void SetControlConnected(Roster& roster, GroupId group, bool connected);

}  // namespace weightcast::control
