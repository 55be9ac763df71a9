#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "control/members.h"
#include "protocol/messages.h"
#include "weightcast/status.h"

/// What the controller's machine knows of an update that is under way.
namespace weightcast::control {

/// An inference rank's way through an update.
enum class RankStep : uint8_t { kAsked, kGranted, kReady, kCommitting, kCommitted, kServing };
/// What has come from one source.
struct Route {
  uint32_t sender = 0;  ///< In UpdateState::senders.
  uint64_t bytes = 0;
  double seconds = 0;
  friend bool operator==(const Route&, const Route&) = default;
};
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
  std::vector<Route> routes = {};  ///< Once ready.
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
  // UpdateState's to change, as `step` and `part`.
  uint32_t first = 0;                  ///< Of its ranks, in UpdateState::receivers.
  uint32_t ranks = 0;                  ///< They are next to each other.
  std::array<uint32_t, 6> steps = {};  ///< How many of them are at each RankStep.
  friend bool operator==(const Target&, const Target&) = default;
};

/// Who may have the bytes of an update, in the order in which they are tried.
enum class Holders : uint8_t {
  kTrainersLeft,  ///< But for those from whom a path has failed.
  kEngines,       ///< All ranks of engines that have every byte.
  kAllTrainers,   ///< With new connections where the old ones failed.
  kNobody,
};

/// With counts that are kept as it goes on, so that no event has to look at all its ranks.
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
  std::vector<protocol::WorkerName> senders;    ///< The sources of each attempt, one after another.
  size_t first_sender = 0;                      ///< Of the last attempt.

  /// Once, when all targets and receivers are there.
  void Index();
  Target* TargetOf(GroupId group);          ///< nullptr: it takes no part.
  Receiver* ReceiverOf(SessionId session);  ///< Likewise.
  std::span<Receiver> RanksOf(const Target& target) {
    return std::span(receivers).subspan(target.first, target.ranks);
  }
  /// Whether all ranks of the engine have come so far.
  [[nodiscard]] static bool AllAt(const Target& target, RankStep step);
  /// How many engines are at this step, or have not come so far.
  [[nodiscard]] uint32_t At(EngineStep step) const { return steps_[static_cast<size_t>(step)]; }
  [[nodiscard]] uint32_t Before(EngineStep step) const;
  /// Engines that have yet to grant the first part.
  [[nodiscard]] uint32_t ungranted() const { return ungranted_; }
  [[nodiscard]] bool AllOver() const {
    return At(EngineStep::kDone) + At(EngineStep::kOut) == targets.size();
  }
  void Move(Receiver& rank, RankStep step);
  void Move(Target& target, EngineStep step) { Move(target, step, target.part); }
  void Move(Target& target, EngineStep step, uint32_t part);

  friend bool operator==(const UpdateState&, const UpdateState&) = default;

 private:
  void Count(const Target& target, int sign);

  std::array<uint32_t, 13> steps_ = {};  ///< By EngineStep.
  uint32_t ungranted_ = 0;
  // Positions in the lists above.
  std::vector<uint32_t> by_group_;
  std::vector<uint32_t> by_session_;
};

}  // namespace weightcast::control
