#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/messages.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

/// What the controller knows of one model: plain data, so that tests and a model checker can copy, compare
/// and hash it. The heavy things (shards, tables, landing maps) stay in the shell, behind session and epoch
/// numbers.
namespace weightcast::reference {

/// One worker process from its Hello until it leaves or is lost. Given by the shell, rising, never 0.
using SessionId = uint32_t;
inline bool Contains(const std::vector<SessionId>& sessions, SessionId session) {
  return std::find(sessions.begin(), sessions.end(), session) != sessions.end();
}

/// Given by the machine, rising. 0 stands for the trainers, who are a group like an engine's ranks.
using GroupId = uint32_t;
inline constexpr GroupId kTrainers = 0;

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

struct Worker {
  SessionId session = 0;
  GroupId group = kTrainers;
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  bool connected = true;
  bool registered = false;
  bool landed = false;    ///< Inference: its LandingMap is here.
  uint32_t planned = 0;   ///< The last epoch whose plan has it as a member.
  uint32_t prepared = 0;  ///< The last epoch for which it said so.

  // Inference.
  protocol::Landing landing = protocol::Landing::kInPlace;
  protocol::EngineState state = protocol::EngineState::kJoining;
  Version version;                            ///< Last served; `state` tells whether it still is.
  std::optional<protocol::UpdateId> fencing;  ///< Aborted, but not yet answered: not to be granted anew.
  std::optional<protocol::UpdateId>
      told;  ///< Serve has gone out for it, to `told_version`; not yet answered.
  Version told_version;
  Version newest;  ///< That it was ever told to serve: it gets nothing older.

  uint32_t parts = 1;  ///< In which it takes an update.
  bool shares = true;  ///< Others may get what has landed there from it ...
  Version holds;       ///< ... which is wholly of this version, as far as is known here.

  // Trainers.
  int64_t offered = -1;  ///< The number last published, as long as its bytes can be had.
  std::string label;     ///< Of that.
  bool hold = false;
  bool waiting = false;  ///< The trainer has no answer for it yet, and its update has not opened.

  friend bool operator==(const Worker&, const Worker&) = default;
};

/// Where an engine stands with its EngineControl: the last order, and what came of it.
struct Steering {
  SessionId session = 0;  ///< 0: it is not here.
  uint64_t incarnation = 0;
  bool connected = true;
  uint64_t order = 0;  ///< Counts.
  protocol::Move move = protocol::Move::kEvict;
  Version version;
  bool done = true;      ///< Answered, and well. Whoever comes new has no requests.
  bool failed = false;   ///< Answered, and badly.
  bool overdue = false;  ///< An update has waited for it in vain: others are not kept waiting again.
  friend bool operator==(const Steering&, const Steering&) = default;
};

/// Updates to one version that may fail in one engine before it has to join anew.
inline constexpr uint8_t kMaxTries = 3;

/// The trainers, or the ranks of an engine.
struct Group {
  GroupId id = kTrainers;
  std::string name;  ///< The engine's; empty for the trainers.
  uint32_t world_size = 0;
  uint32_t members = 0;  ///< Here.
  uint32_t in_plan = 0;  ///< The last epoch whose plan it is part of, whole as it was then.
  bool planned = false;  ///< Has been part of a plan since it became complete.
  bool in_full_plan =
      false;                 ///< The same of a plan that was not for one update alone; sleep does not end it.
  bool join_timer = false;   ///< Armed.
  bool grant_timer = false;  ///< grant_timeout runs on when one update that waits for it supersedes another.
  bool fence_overdue = false;   ///< A rank has not fenced its memory within the time-out.
  uint8_t failed_prepares = 0;  ///< Plans in a row whose preparation failed because of it.
  uint32_t failed_epoch = 0;    ///< The last of them.
  bool left_out = false;        ///< It could not be reached: plans are without it until kRetry fires.
  uint8_t tries = 0;            ///< Failed updates to `tried`.
  Version tried;
  bool at_fault = false;  ///< The last of them failed because of one of its own ranks.
  weightcast::Status last_error;
  /// A member of the complete group was lost and has not been replaced.
  weightcast::Status loss;
  bool controlled = false;  ///< Has, or had, an EngineControl: takes part in updates only with it.
  Steering steering;
  friend bool operator==(const Group&, const Group&) = default;
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

/// An inference rank's way through an update.
enum class RankStep : uint8_t { kAsked, kGranted, kReady, kCommitting, kCommitted, kServing };
struct Receiver {
  SessionId session = 0;
  GroupId group = 0;
  uint32_t rank = 0;  ///< Kept here: the worker may have left politely before the update is over.
  uint32_t destination = 0;
  protocol::UpdateId id = {};  ///< Of the attempt that fills it; none yet if its sequence is 0.
  RankStep step = RankStep::kAsked;
  bool started = false;                            ///< Some source was told of its grants.
  bool compares = false;                           ///< It wants the digests of its sources.
  std::vector<protocol::SourceGrant> grants = {};  ///< Until the sources are told.
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t compared = 0;
  std::vector<protocol::RouteBytes> routes = {};  ///< Once ready.
  friend bool operator==(const Receiver&, const Receiver&) = default;
};

/// An engine's: a step is reached when all its ranks have reached it.
enum class EngineStep : uint8_t {
  kSourceless,  ///< Its bytes are to come from another holder: fenced and planned before it is asked.
  kPausing,     ///< Its EngineControl pauses it: the live tensors are to be written.
  kGranting,
  kGranted,  ///< By all its ranks; no source is told before every engine that switches with it has come so
             ///< far.
  kWriting,
  kReady,
  kHalting,  ///< As kPausing, before a switch from spare buffers.
  kCommitting,
  kSettling,   ///< All have committed; its EngineControl flushes caches and sets the version.
  kServing,    ///< Serve has gone out: the update has succeeded here.
  kAdmitting,  ///< Its EngineControl lets it go on.
  kDone,
  kOut,
};
/// "writing"
std::string_view NameOf(EngineStep step);
struct Target {
  GroupId group = 0;
  EngineStep step = EngineStep::kGranting;
  uint32_t part = 0;          ///< Of the update, that is asked for or came last.
  weightcast::Status reason;  ///< Why out.
  bool overdue = false;       ///< Has not granted at once: others need not wait for it.
  bool late = false;          ///< Out because it had not come: no failure of its own.
  int64_t rank = -1;          ///< Whose fault it was, if it was a rank's of this engine.
  friend bool operator==(const Target&, const Target&) = default;
};

/// Who may have the bytes of an update, in the order in which they are tried.
enum class Holders : uint8_t {
  kTrainersLeft,  ///< But for those from whom a path has failed.
  kEngines,       ///< All ranks of engines that have every byte.
  kAllTrainers,   ///< With new connections where the old ones failed.
  kNobody,
};

struct UpdateState {
  protocol::UpdateId id;  ///< Of the last attempt.
  Version version;
  bool fresh = false;    ///< Not a version held for engines that came later.
  bool started = false;  ///< Some source was told to.
  bool released = false;
  bool aborted = false;  ///< The trainers have been told.
  std::vector<Target> targets;
  std::vector<Receiver> receivers;              ///< By destination.
  std::vector<SessionId> trainers;              ///< That keep its bytes unchanged until they are released.
  std::vector<SessionId> unable;                ///< Of them, those that have failed by themselves.
  std::vector<SessionId> avoided;               ///< Of them, those from which a path has failed.
  Holders holders = Holders::kTrainersLeft;     ///< To be tried next in a repair.
  uint32_t repair_epoch = 0;                    ///< Of the plan that a repair waits for; 0: none.
  uint32_t repairs = 0;                         ///< Attempts from other holders.
  weightcast::Status loss;                      ///< The last of them.
  std::vector<protocol::EngineOutcome> absent;  ///< Engines that take no part, with the reason.
  friend bool operator==(const UpdateState&, const UpdateState&) = default;
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
  std::vector<Worker> workers;  ///< By session.
  std::vector<Group> groups;    ///< By id; the trainers first, always there.
  GroupId next_group = 1;
  PlanState plan;
  std::optional<UpdateState> update;
  uint64_t sequence = 0;
  uint32_t attempt = 0;
  protocol::Run run;         ///< Counted here, or adopted from trainers that have outlived a controller.
  protocol::Run run_before;  ///< That the trainer with which it began had been told of; none if new.
  uint64_t run_seen = 0;     ///< The highest that an inference rank has served.
  std::vector<RunMember> run_members;  ///< Trainers that have joined since the run began, or were told of it.
  bool catch_up_timer = false;         ///< Armed.
  bool fence_timer = false;            ///< Armed.
  Withdrawn withdrawn;
  Version committed;               ///< Last.
  weightcast::Status last_error;   ///< Of the model.
  weightcast::Status engine_loss;  ///< Why the last engine that was lost was.
  friend bool operator==(const MachineState&, const MachineState&) = default;
};

/// Equal states have equal fingerprints; others very probably different ones.
uint64_t Fingerprint(const MachineState& state);

}  // namespace weightcast::reference
