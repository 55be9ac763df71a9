#pragma once

#include "control/command_state.h"
#include "control/deadline_state.h"
#include "control/engine_state.h"
#include "control/membership_state.h"
#include "control/opening_state.h"
#include "control/plan_state.h"
#include "control/publication_state.h"
#include "control/rank_state.h"
#include "control/repair_state.h"
#include "control/roster.h"
#include "control/run_state.h"
#include "control/update_state.h"
#include "weightcast/status.h"

/// What the controller knows of one model: plain data, so that tests and a model checker can copy, compare
/// and hash it. The heavy things (shards, tables, landing maps) stay in the shell, behind session and epoch
/// numbers.
namespace weightcast::control {

/// The roster, which all rules read, and each rule's slice, which no other rule can name.
struct MachineState {
  Roster roster;
  MembershipState membership;
  RunState runs;
  PlanState plan;
  PublicationState publications;
  CommandState commands;
  OpeningState opening;
  UpdatesState updates;
  EnginesState engines;
  RanksState ranks;
  DeadlineState deadlines;
  RepairState repair;
  weightcast::Status last_error;  ///< Of the model. Shown; no rule reads it.
  friend bool operator==(const MachineState&, const MachineState&) = default;
};

}  // namespace weightcast::control
