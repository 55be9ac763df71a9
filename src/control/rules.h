#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "control/machine_config.h"
#include "control/outbox.h"
#include "control/plan_phase.h"
#include "control/roster.h"
#include "control/update_rules.h"
#include "protocol/messages.h"
#include "weightcast/status.h"

/// What the rules of the controller's machine ask of each other (docs/architecture.md, "The controller's
/// machine"). Each rule owns a slice of the state that no other is given. All read the roster.
namespace weightcast::control {

/// Who is here.
class Membership {
 public:
  /// The group that a Hello names, added if there is none.
  virtual const Group& GroupFor(const protocol::Hello& hello) = 0;
  virtual void Refuse(const std::vector<SessionId>& sessions, const Status& reason) = 0;
  void Refuse(SessionId session, const Status& reason) { Refuse(std::vector{session}, reason); }
  /// Why the last engine that was lost was; ok: none, or one has come since.
  [[nodiscard]] virtual const Status& engine_loss() const = 0;

 protected:
  ~Membership() = default;
};

/// Which run versions are of.
class Runs {
 public:
  [[nodiscard]] virtual const protocol::Run& run() const = 0;
  /// Of a run that this controller may not have counted itself.
  [[nodiscard]] virtual Status Check(const protocol::Run& run) const = 0;
  [[nodiscard]] Status Check(const Version& version) const { return Check(protocol::RunOf(version)); }
  /// A trainer that is told of a run is part of it, even if it was here before; its successor is not.
  virtual void Join(uint32_t rank, uint64_t incarnation) = 0;
  /// A trainer comes: a new run begins if it replaces another process.
  virtual void TrainerJoins(const protocol::Hello& hello) = 0;
  /// A rank has told what it has served: a new run begins if that is newer than the present one.
  virtual void RankServed(const Worker& rank) = 0;

 protected:
  ~Runs() = default;
};

/// Of the present plan, what the others may know. A view: valid until the rule changes its plan.
struct PlanFacts {
  uint32_t epoch = 0;
  PlanPhase phase = PlanPhase::kNone;
  bool stale = true;     ///< Another is made before the next update.
  bool delayed = false;  ///< The timer before the next plan is armed.
  bool from_engines = false;
  std::span<const SessionId> sources;       ///< By number in the table.
  std::span<const SessionId> destinations;  ///< Likewise.
};

struct GroupFacts {
  bool planned = false;   ///< Has been part of a plan since it became complete.
  bool left_out = false;  ///< It could not be reached: plans are without it for a while.
};

/// The plan, and when there is another.
class Planning {
 public:
  [[nodiscard]] virtual PlanFacts plan() const = 0;
  [[nodiscard]] virtual GroupFacts Of(GroupId group) const = 0;

  /// Another plan is made before the next update.
  virtual void MarkStale() = 0;
  /// The same if the worker is in the present plan.
  virtual void Changed(const Worker& worker) = 0;
  /// A member of the group goes; before the roster forgets it.
  virtual void Lose(const Worker& worker) = 0;
  /// The group is not as it was planned. One that only sleeps does not make the present plan useless.
  virtual void Unplan(GroupId group, bool sleeps) = 0;
  virtual void ForgetGroup(GroupId group) = 0;
  /// A plan that was made for one update alone is of no use after it.
  virtual void EndPartial() = 0;
  /// For a repair: these sources give to the ranks of these engines. Returns the epoch.
  virtual uint32_t PlanRepair(std::vector<SessionId> sources, bool from_engines,
                              const std::vector<GroupId>& engines) = 0;
  /// The plan, or the one that is being prepared, counts no more.
  virtual void Drop() = 0;

 protected:
  ~Planning() = default;
};

/// What the trainers publish.
class Publications {
 public:
  /// Nothing of the run that ends can be had any more.
  virtual void EndRun(const Status& reason) = 0;
  /// An update has opened: the trainers get their answer from it ...
  virtual void Opened() = 0;
  /// ... but it was withdrawn, and opens again.
  virtual void Reopens() = 0;

 protected:
  ~Publications() = default;
};

/// What EngineControls are asked for.
class Commands {
 public:
  enum class Answer : uint8_t { kDone, kAwaited, kGone };
  /// Asks for a command, unless it has been asked for or done. kStep is armed while it is awaited. An engine
  /// that has no EngineControl has done everything.
  virtual Answer Ask(const Group& group, protocol::Command command, const Version& version) = 0;
  /// Not ok: an update has waited for it in vain since.
  [[nodiscard]] virtual Status Overdue(const Group& group) const = 0;
  /// An update has waited for it in vain. Returns what it waited for.
  virtual Status TimedOut(const Group& group) = 0;
  virtual void Attach(SessionId session, const protocol::Hello& hello) = 0;

 protected:
  ~Commands() = default;
};

/// What each rule is given: the roster, the actions, and the others.
struct Context {
  const MachineConfig& config;
  Roster& roster;
  Outbox& out;
  Status& last_error;  ///< Of the model. It is shown; no rule reads it.
  Membership* membership = nullptr;
  Runs* runs = nullptr;
  Planning* planning = nullptr;
  Publications* publications = nullptr;
  Commands* commands = nullptr;
  Opening* opening = nullptr;
  Updates* updates = nullptr;
  Engines* engines = nullptr;
  Ranks* ranks = nullptr;
  Deadlines* deadlines = nullptr;
  Repair* repair = nullptr;
};

/// Exists for one event.
class Rule {
 protected:
  explicit Rule(const Context& context)
      : config_(context.config), roster_(context.roster), out_(context.out), rules_(context) {}
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;
  ~Rule() = default;

  const MachineConfig& config_;
  Roster& roster_;
  Outbox& out_;
  const Context& rules_;  ///< The others.
};

}  // namespace weightcast::control
