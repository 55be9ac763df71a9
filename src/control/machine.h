#pragma once

#include "control/command_rule.h"
#include "control/deadline_rule.h"
#include "control/engine_rule.h"
#include "control/machine_state.h"
#include "control/membership_rule.h"
#include "control/opening_rule.h"
#include "control/plan_rule.h"
#include "control/publication_rule.h"
#include "control/rank_rule.h"
#include "control/repair_rule.h"
#include "control/rules.h"
#include "control/run_rule.h"
#include "control/update_rule.h"

namespace weightcast::control {

/// One step of the controller's machine. Gives an event to the rule that it is for, then lets every rule, in
/// a fixed order, do what has become possible or hopeless. Exists for one event.
class Machine {
 public:
  Machine(const MachineConfig& config, MachineState& state, Actions& actions);

  void On(const Attached& event);
  void On(const StreamBroken& event);
  void On(const Resumed& event);
  void On(const Gone& event);
  void On(const MessageReceived& event);
  void On(const TimerFired& event);
  void On(const PlanMade& event);
  void On(const PlanFailed& event);

 private:
  /// The engine whose EngineControl this is; nullptr if it is none.
  const Group* ControlledBy(SessionId session);
  /// False: its role does not send this.
  bool OnMessage(const Worker& worker, const protocol::WorkerMessage& message);
  bool OnTrainerMessage(const Worker& trainer, const protocol::WorkerMessage& message);
  bool OnRankMessage(const Worker& rank, const protocol::WorkerMessage& message);
  /// After every event.
  void Advance();

  Roster& roster_;
  Outbox out_;
  Context context_;
  MembershipRule membership_;
  RunRule runs_;
  PlanRule planning_;
  PublicationRule publications_;
  CommandRule commands_;
  OpeningRule opening_;
  UpdateRule updates_;
  EngineRule engines_;
  RankRule ranks_;
  DeadlineRule deadlines_;
  RepairRule repair_;
};

}  // namespace weightcast::control
