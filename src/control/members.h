#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "protocol/messages.h"
#include "weightcast/status.h"

/// Workers and groups of them, as the controller's machine knows them.
namespace weightcast::control {

/// One worker process from its Hello until it leaves or is lost. Given by the shell, rising, never 0.
using SessionId = uint32_t;
inline bool Contains(const std::vector<SessionId>& sessions, SessionId session) {
  return std::find(sessions.begin(), sessions.end(), session) != sessions.end();
}

/// The one with this key in what is sorted by it; nullptr: there is none.
template <typename T, typename Value, typename Key>
[[nodiscard]] const T* FindSorted(const std::vector<T>& sorted, const Value& value, const Key& key) {
  const auto at = std::ranges::lower_bound(sorted, value, {}, key);
  return at != sorted.end() && std::invoke(key, *at) == value ? &*at : nullptr;
}

/// Given by the machine, rising. 0 stands for the trainers, who are a group like an engine's ranks.
using GroupId = uint32_t;
inline constexpr GroupId kTrainers = 0;

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
  std::optional<protocol::UpdateId> fencing;  ///< Aborted, but not yet answered: not to be granted again.
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

/// Of an engine that is paused and let go on by its front end.
struct Control {
  SessionId session = 0;  ///< 0: it is not here.
  uint64_t incarnation = 0;
  bool connected = true;
  friend bool operator==(const Control&, const Control&) = default;
};

/// Of a group's members; Roster keeps it.
struct GroupCounts {
  uint32_t ready = 0;  ///< Registered, and landed where it is an inference rank.
  uint32_t suspended = 0;
  uint32_t fencing = 0;
  uint32_t in_place = 0;
  std::array<uint32_t, 7> states = {};  ///< By EngineState.
  friend bool operator==(const GroupCounts&, const GroupCounts&) = default;
};

/// The trainers, or the ranks of an engine.
struct Group {
  GroupId id = kTrainers;
  std::string name;  ///< The engine's; empty for the trainers.
  uint32_t world_size = 0;
  // Roster's to change.
  uint32_t members = 0;          ///< Here.
  std::vector<SessionId> ranks;  ///< By rank; 0: not here.
  GroupCounts counts;
  Version served;  ///< The one that all ranks of the complete engine serve; otherwise none.

  bool controlled = false;  ///< Has, or had, an EngineControl: takes part in updates only with it.
  Control control;
  bool fence_overdue = false;  ///< A rank has not fenced its memory within the time-out.
  weightcast::Status last_error;
  /// A member of the complete group was lost and has not been replaced.
  weightcast::Status loss;
  friend bool operator==(const Group&, const Group&) = default;
};

}  // namespace weightcast::control
