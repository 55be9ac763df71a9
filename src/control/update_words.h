#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "control/members.h"
#include "protocol/messages.h"
#include "weightcast/status.h"

/// How far an update is: the words in which its rules speak to each other.
namespace weightcast::control {

/// An inference rank's way through an update.
enum class RankStep : uint8_t { kAsked, kGranted, kReady, kCommitting, kCommitted, kServing };

/// An engine's: a step is reached when all its ranks have reached it. In order: the view compares steps by
/// <=.
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
  kActivating,  ///< All have committed; its EngineControl flushes caches and sets the version.
  kServing,     ///< Serve has gone out: the update has succeeded here.
  kResuming,    ///< Its EngineControl lets it go on.
  kDone,
  kOut,
};
/// Whether its EngineControl has been asked for something.
[[nodiscard]] constexpr bool IsCommanded(EngineStep step) {
  return step == EngineStep::kPausing || step == EngineStep::kHalting || step == EngineStep::kActivating ||
         step == EngineStep::kResuming;
}
/// "writing"
std::string_view NameOf(EngineStep step);

/// Where an engine is in the open update.
struct EngineProgress {
  GroupId group = 0;
  EngineStep step = EngineStep::kGranting;
  uint32_t part = 0;  ///< Of the update, that is asked for or came last.
};

/// How many engines of the open update are at each step.
struct EngineCounts {
  std::array<uint32_t, 13> steps = {};  ///< By EngineStep.

  [[nodiscard]] uint32_t At(EngineStep step) const { return steps[static_cast<size_t>(step)]; }
  /// That have not come so far.
  [[nodiscard]] uint32_t Before(EngineStep step) const {
    return std::accumulate(steps.begin(), steps.begin() + static_cast<ptrdiff_t>(step), 0U);
  }
  [[nodiscard]] uint32_t All() const { return Before(EngineStep::kOut) + At(EngineStep::kOut); }
  friend bool operator==(const EngineCounts&, const EngineCounts&) = default;
};

/// Where a rank is in it.
struct RankProgress {
  protocol::UpdateId id;  ///< Of the attempt that fills it; none yet if its sequence is 0.
  RankStep step = RankStep::kAsked;
};

/// What became of an engine.
struct EngineEnd {
  GroupId group = 0;
  bool committed = false;
  bool late = false;          ///< Out because it had not come: no failure of its own.
  weightcast::Status reason;  ///< Why out.
  int64_t rank = -1;          ///< Whose fault it was, if it was a rank's of this engine.
};

/// What has come from one source.
struct Route {
  uint32_t sender = 0;  ///< Among the update's senders.
  uint64_t bytes = 0;
  double seconds = 0;
  friend bool operator==(const Route&, const Route&) = default;
};
/// What a rank has got.
struct Arrival {
  GroupId group = 0;
  uint32_t rank = 0;
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t compared = 0;
  std::vector<Route> routes;
};

/// Of the open update, what its other rules may know.
struct UpdateFacts {
  const protocol::UpdateId& id;  ///< Of the last attempt.
  const Version& version;
  bool fresh = false;                   ///< Not a version held for engines that came later.
  bool released = false;                ///< The sources need not keep its bytes.
  bool aborted = false;                 ///< The trainers have been told.
  std::span<const SessionId> trainers;  ///< That keep its bytes unchanged until they are released.
  size_t senders = 0;                   ///< The sources of each attempt, one after another ...
  size_t first_sender = 0;              ///< ... and of the last.
};

/// Who may have the bytes of an update, in the order in which they are tried.
enum class Holders : uint8_t {
  kTrainersLeft,  ///< But for those from whom a path has failed.
  kEngines,       ///< All ranks of engines that have every byte.
  kAllTrainers,   ///< With new connections where the old ones failed.
  kNobody,
};

/// An update that is to open.
struct NewUpdate {
  Version version;
  bool fresh = false;
  std::vector<SessionId> trainers;
  std::vector<GroupId> engines;
  std::vector<protocol::EngineOutcome> absent;  ///< Engines that take no part, with the reason.
};

}  // namespace weightcast::control
