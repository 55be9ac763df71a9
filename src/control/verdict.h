#pragma once

#include <memory>
#include <string>
#include <vector>

#include "control/critical_path.h"
#include "control/timeline.h"

/// Why an update took as long as it did: pure functions. An update is compared with the updates before it and
/// with its own other routes (docs/explain.md).
namespace weightcast::control {

struct Verdict {
  bool slow = false;  ///< Else `cause` is what bounds an update that took as long as others.
  Cause cause{};
  std::string worker;     ///< Whose doing it was; empty: the controller's.
  std::string victim;     ///< Who waited for it; empty: all.
  double seconds = 0;     ///< That it took, ...
  double share = 0;       ///< ... as a share of the update.
  double usual = kNever;  ///< What this cause took in the median of earlier updates.
  size_t history = 0;     ///< Updates that it was compared with.
  std::string text;       ///< One sentence.
  std::string remedy;     ///< What would fix it.
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

/// An update that is over, and what was made of it.
struct Explained {
  UpdateTimeline timeline;
  std::vector<Segment> path;
  std::vector<Cost> costs;
  double seconds = 0;  ///< Of the path.
  Verdict verdict;
};
/// Oldest first.
using Explanations = std::vector<std::shared_ptr<const Explained>>;

/// With fewer updates before it no update is called slow.
inline constexpr size_t kLeastHistory = 5;

/// `before`: updates of the same model, of which those that ended well count.
Explained Explain(UpdateTimeline timeline, const Explanations& before);

}  // namespace weightcast::control
