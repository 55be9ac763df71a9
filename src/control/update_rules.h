#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "control/members.h"
#include "control/update_words.h"
#include "protocol/messages.h"
#include "weightcast/status.h"

/// What the rules of an update ask of each other, and others of them (control/rules.h).
namespace weightcast::control {

/// When an update opens, and which engines take part in it.
class Opening {
 public:
  /// The engine is complete again: failures of its earlier processes do not count.
  virtual void ForgetFailures(GroupId group) = 0;
  virtual void ForgetGroup(GroupId group) = 0;
  /// What became of the engine in an update to this version.
  virtual void NoteEnd(const EngineEnd& end, const Version& version) = 0;
  /// Too many updates to this version have failed in the engine.
  [[nodiscard]] virtual bool IsGivenUp(GroupId group, const Version& version) const = 0;
  /// The last update to this version failed because of one of the engine's own ranks.
  [[nodiscard]] virtual bool IsAtFault(GroupId group, const Version& version) const = 0;

 protected:
  ~Opening() = default;
};

/// The open update, as publishers and sources see it.
class Updates {
 public:
  [[nodiscard]] virtual bool open() const = 0;
  /// Of the open update. A view: valid until the rule changes it, as each call that opens, begins again or
  /// ends the update may.
  [[nodiscard]] virtual UpdateFacts update() const = 0;
  virtual void Open(NewUpdate update) = 0;
  /// From engines that serve the version: its ranks are not asked before there is a plan.
  virtual void OpenFromEngines(NewUpdate update) = 0;
  /// It goes on under a new plan.
  virtual void BeginAttempt() = 0;
  /// Some source is told of its grants.
  virtual void MarkStarted() = 0;
  /// No source is left, or one is not to be trusted: every engine that has come no further than `last` is
  /// out.
  virtual void Abort(const Status& reason, EngineStep last = EngineStep::kReady) = 0;
  /// A worker is gone; the roster has forgotten it.
  virtual void Lose(const Worker& worker, const Status& reason) = 0;
  /// A rank registered again, or sleeps. If it had not granted, it was asked for its old tensors: the update
  /// begins again.
  virtual void BeginAgain(const Worker& rank, std::string_view what) = 0;
  /// A version that some engine serves already commits in each engine by itself.
  [[nodiscard]] virtual bool SwitchesTogether() const = 0;

 protected:
  ~Updates() = default;
};

/// The engines of the open update.
class Engines {
 public:
  /// nullptr: it takes no part. Valid until an engine is opened or the update closed.
  [[nodiscard]] virtual const EngineProgress* Of(GroupId group) const = 0;
  /// It takes part, and is neither through nor out.
  [[nodiscard]] bool IsBusy(GroupId group) const {
    const EngineProgress* engine = Of(group);
    return engine != nullptr && engine->step != EngineStep::kOut && engine->step != EngineStep::kDone;
  }
  [[nodiscard]] virtual const EngineCounts& counts() const = 0;
  [[nodiscard]] virtual std::vector<GroupId> GroupsAt(EngineStep step) const = 0;

  virtual void Open(const std::vector<GroupId>& engines, EngineStep first) = 0;
  /// The update is over, or withdrawn.
  virtual std::vector<EngineEnd> Close() = 0;
  /// Pauses the engine first if it has an EngineControl and its live tensors are to be written.
  virtual void BeginGrants(GroupId group) = 0;
  /// All that is possible: sources are told of grants, engines switch.
  virtual void Advance() = 0;
  /// All ranks of the engine have come to this step.
  virtual void RanksCame(GroupId group, RankStep step) = 0;
  /// What its EngineControl was asked for is done.
  virtual void CommandDone(GroupId group) = 0;
  /// It is not available: the engine is out if it was waited for.
  virtual void CommandFailed(GroupId group, const Status& reason) = 0;
  /// `who` is the rank that is to blame, nullptr when that is no rank of this engine.
  virtual void Out(GroupId group, const Status& reason, const Worker* who = nullptr,
                   SessionId fenced_already = 0) = 0;
  /// Every engine that has come no further than `last`.
  virtual void OutUpTo(EngineStep last, const Status& reason) = 0;
  /// A rank is gone, or says nothing more. A Serve that has gone out is never taken back.
  virtual void LoseRank(GroupId group, const Status& reason, const Worker* who) = 0;
  /// Engines that lack bytes are to get them from other holders. Out are those that have taken parts.
  virtual void LoseSources(const Status& reason) = 0;

  /// Engines that keep others waiting.
  struct Lateness {
    bool waiting = false;  ///< Some engine goes on, and is not late.
    bool through = false;  ///< Some engine is.
    bool overdue = true;   ///< All that are late have had their time.
    bool begun = false;    ///< Some late engine has granted.
  };
  [[nodiscard]] virtual Lateness lateness() const = 0;
  /// Late ones are out, by no fault of their own.
  virtual void DropLate() = 0;
  /// Nothing was sent: no engine loses its version.
  virtual void Withdraw() = 0;

 protected:
  ~Engines() = default;
};

/// Their ranks.
class Ranks {
 public:
  struct Seat {
    SessionId session = 0;
    uint32_t destination = 0;  ///< In the plan's table.
  };
  /// Ranks of one engine are next to each other.
  virtual void Open(const std::vector<Seat>& seats) = 0;
  virtual std::vector<Arrival> Close() = 0;
  [[nodiscard]] virtual std::optional<RankProgress> Of(SessionId session) const = 0;
  /// The engine of the rank that this attempt has at `destination`, if the rank lacks bytes.
  [[nodiscard]] virtual std::optional<GroupId> LackingAt(const protocol::UpdateId& id,
                                                         int64_t destination) const = 0;
  /// All ranks of the engine have come so far.
  [[nodiscard]] virtual bool AllAt(GroupId engine, RankStep step) const = 0;
  /// Some rank of the engine has all bytes of its part.
  [[nodiscard]] virtual bool AnyReady(GroupId engine) const = 0;
  /// The first that is here and has not come so far.
  [[nodiscard]] virtual const Worker* MissingAt(GroupId engine, RankStep step) const = 0;
  /// Those that lack bytes have fenced, and may be planned.
  [[nodiscard]] virtual bool IsSettled(GroupId engine) const = 0;

  /// Those of the engine that have not every byte are asked for grants.
  virtual void Ask(GroupId engine) = 0;
  virtual void AskForPart(GroupId engine, uint32_t part) = 0;
  /// Tells sources of the grants of these engines.
  virtual void Start(const std::vector<GroupId>& engines) = 0;
  virtual void Commit(GroupId engine) = 0;
  virtual void Serve(GroupId engine) = 0;
  virtual void Abort(GroupId engine, const Status& reason, SessionId fenced_already = 0) = 0;
  virtual void StopSenders(GroupId engine) = 0;
  /// Ranks that have every byte keep them. The user's calls of the others wait on.
  virtual void LoseSources(GroupId engine) = 0;
  /// Their numbers in a new plan, of those that lack bytes.
  virtual void Renumber(std::span<const SessionId> destinations) = 0;
  /// It says that it cannot take the update, or not from one source.
  virtual void OnFailed(const Worker& rank, const protocol::Failed& message, const Status& reason) = 0;

 protected:
  ~Ranks() = default;
};

/// How long an engine has for a step.
class Deadlines {
 public:
  /// For the step at which the engine is now.
  virtual void Begin(GroupId engine) = 0;
  virtual void End(GroupId engine) = 0;
  virtual void BeginGrants(GroupId engine) = 0;
  /// It has granted, or waits for its EngineControl.
  virtual void EndGrants(GroupId engine) = 0;
  /// The time to grant runs on, in this update or since one before.
  [[nodiscard]] virtual bool IsGranting(GroupId engine) const = 0;
  /// It has not granted the open update at once: others need not wait for it.
  [[nodiscard]] virtual bool IsOverdue(GroupId engine) const = 0;
  /// The open update is over: the next one finds no engine overdue.
  virtual void Close() = 0;
  /// A member of the group goes: no time to grant runs on outside an update.
  virtual void Lose(GroupId group) = 0;
  virtual void ForgetGroup(GroupId group) = 0;

 protected:
  ~Deadlines() = default;
};

/// Other holders of the bytes.
class Repair {
 public:
  virtual void Open(Holders first) = 0;
  virtual void Close() = 0;
  /// A plan for it is being made.
  [[nodiscard]] virtual bool IsPlanned() const = 0;
  /// That plan is not possible, or its members cannot prepare it: the next holders are tried.
  virtual void PlanFailed(const Status& reason) = 0;
  /// `lost` sends no more for this update: engines that lack bytes get them from others, or are out. With
  /// `only`, just the path to that engine has failed.
  virtual void LoseSource(const Worker& lost, const Status& reason,
                          std::optional<GroupId> only = std::nullopt) = 0;
  /// What an engine that is out has is its own affair: it gives no more.
  virtual void EngineOut(GroupId group, const Status& reason) = 0;
  /// Plans for engines without a source, and asks them for grants.
  virtual void Advance() = 0;
  /// Engines that lack what others serve get it from them; true if such an update is open now.
  virtual bool OpenFromPeers() = 0;
  /// Others than those of the open update lack its version too.
  [[nodiscard]] virtual bool HasNewcomers() const = 0;

 protected:
  ~Repair() = default;
};

}  // namespace weightcast::control
