#pragma once

#include "control/roster.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// What rules change of a group in the roster, beside Roster::SetControl.
class GroupChange {
 public:
  GroupChange(Roster& roster, GroupId group) : group_(roster.Change(*roster.FindGroup(group))) {}

  void SetLastError(const Status& error) { group_.last_error = error; }
  /// Why a member of the complete group was lost; ok: it has been replaced, or there is nothing to wait for.
  void SetLoss(const Status& loss) { group_.loss = loss; }
  void SetFenceOverdue(bool overdue) { group_.fence_overdue = overdue; }
  /// It has an EngineControl, be it here or not.
  void SetControlled() { group_.controlled = true; }
  void SetControlConnected(bool connected) { group_.control.connected = connected; }

 private:
  Group& group_;
};

}  // namespace weightcast::control
