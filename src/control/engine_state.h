#pragma once

#include <cstdint>
#include <vector>

#include "control/update_words.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// An engine in the open update.
struct Target : EngineProgress {
  weightcast::Status reason;  ///< Why out.
  bool late = false;          ///< Out because it had not come: no failure of its own.
  int64_t rank = -1;          ///< Whose fault it was, if it was a rank's of this engine.
  friend bool operator==(const Target& a, const Target& b) {
    return a.group == b.group && a.step == b.step && a.part == b.part && a.reason == b.reason &&
           a.late == b.late && a.rank == b.rank;
  }
};

/// The rule of engines in an update's: control/engine_rule.h.
struct EnginesState {
  std::vector<Target> targets;

  /// Once, when all are there.
  void Index();
  Target* Of(GroupId group);  ///< nullptr: it takes no part.
  [[nodiscard]] const Target* Of(GroupId group) const { return const_cast<EnginesState*>(this)->Of(group); }
  [[nodiscard]] const EngineCounts& counts() const { return counts_; }
  /// Engines that have yet to grant the first part.
  [[nodiscard]] uint32_t ungranted() const { return ungranted_; }
  void Move(Target& target, EngineStep step) { Move(target, step, target.part); }
  void Move(Target& target, EngineStep step, uint32_t part);

  friend bool operator==(const EnginesState&, const EnginesState&) = default;

 private:
  void Count(const Target& target, int sign);

  EngineCounts counts_;
  uint32_t ungranted_ = 0;
  std::vector<uint32_t> by_group_;  ///< Positions in `targets`.
};

}  // namespace weightcast::control
