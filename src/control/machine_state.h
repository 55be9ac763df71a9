#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/roster.h"
#include "control/update_state.h"
#include "protocol/messages.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

/// What the controller knows of one model: plain data, so that tests and a model checker can copy, compare
/// and hash it. The heavy things (shards, tables, landing maps) stay in the shell, behind session and epoch
/// numbers.
namespace weightcast::control {

/// Fixed for a term.
struct MachineConfig {
  protocol::Term term;
  std::string job = "default";
  bool together = true;  ///< Policy `all`: engines switch together; false: each when it is ready.
  uint32_t min_engines = 1;
  Duration lease = FromSeconds(5);
  Duration timeout = FromSeconds(60);
  Duration grant_timeout = FromSeconds(600);
  Duration commit_timeout = FromSeconds(30);
  Duration join_timeout = FromSeconds(300);
};

enum class PlanPhase : uint8_t {
  kNone,       ///< None yet, or void.
  kPlanning,   ///< The shell is making it.
  kPreparing,  ///< Handed out; members connect.
  kPrepared,   ///< Updates may run.
};

struct PlanState {
  uint32_t epoch = 0;
  PlanPhase phase = PlanPhase::kNone;
  bool stale = true;               ///< Something has changed since it was made: make another between updates.
  bool delay = false;              ///< The timer before the next plan is armed.
  bool ever = false;               ///< There has been one.
  std::vector<SessionId> sources;  ///< By number in the table: trainers by rank, or ranks of engines.
  bool from_engines = false;       ///< The sources are engines' ranks.
  bool partial = false;            ///< Made for one update: not all are in it.
  std::vector<SessionId> destinations;  ///< By number in the table: engines by name, then ranks.
  friend bool operator==(const PlanState&, const PlanState&) = default;
};

/// The latest publication that has been given up: whoever publishes it late is answered at once.
struct Withdrawn {
  int64_t number = -1;
  weightcast::Status reason;  ///< ok: superseded.
  friend bool operator==(const Withdrawn&, const Withdrawn&) = default;
};

struct RunMember {
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  friend bool operator==(const RunMember&, const RunMember&) = default;
};

struct MachineState {
  Roster roster;
  PlanState plan;
  std::optional<UpdateState> update;
  uint64_t sequence = 0;
  uint32_t attempt = 0;
  protocol::Run run;         ///< Counted here, or adopted from trainers that have outlived a controller.
  protocol::Run run_before;  ///< That the trainer with which it began had been told of; none if new.
  uint64_t run_seen = 0;     ///< The highest that an inference rank has served.
  /// Trainers that have joined since the run began, or were told of it; by rank.
  std::vector<RunMember> run_members;
  bool catch_up_timer = false;  ///< Armed.
  bool fence_timer = false;     ///< Armed.
  Withdrawn withdrawn;
  Version committed;               ///< Last.
  weightcast::Status last_error;   ///< Of the model.
  weightcast::Status engine_loss;  ///< Why the last engine that was lost was.
  friend bool operator==(const MachineState&, const MachineState&) = default;
};

/// Equal states have equal fingerprints; others very probably different ones.
uint64_t Fingerprint(const MachineState& state);

}  // namespace weightcast::control
