#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "control/timeline.h"

/// Which steps of an update each had to wait for the one before, and what their time went into. Pure
/// functions.
namespace weightcast::control {

/// What time can go into. docs/explain.md has a line for each.
enum class Cause : uint8_t {
  kLateTrainer,
  kController,
  kOpening,
  kLateEngine,
  kMemoryLent,
  kStopped,
  kSender,
  kSlowDisk,
  kSlowCast,
  kLink,
  kSmallChunks,
  kTinyTensors,
  kLaneDown,
  kFence,
  kVerify,
  kSwitch,
};
std::string_view NameOf(Cause cause);  ///< "late_trainer"

/// Time of a step that went into one thing.
struct Cost {
  Cause cause{};
  std::string worker;  ///< Whose doing it was; empty: the controller's.
  std::string victim;  ///< Who waited; empty: all.
  double seconds = 0;
};

enum class PathStep : uint8_t {
  kPublish,
  kOpen,
  kGrant,
  kStart,
  kReceive,
  kHandOver,
  kCommit,
  kDecide,
  kServe
};
std::string_view NameOf(PathStep step);  ///< "publish"

/// One step of the critical path, which begins where the one before ends.
struct Segment {
  PathStep step{};
  std::string worker;  ///< Whose answer it waited for; empty: the controller.
  double begin = 0;
  double seconds = 0;
  std::vector<Cost> costs;  ///< Their sum is `seconds`.
};

/// From the first publication to the last rank that serves, without a gap. Of an update that nobody serves:
/// as far as it came.
std::vector<Segment> CriticalPath(const UpdateTimeline& update);

/// The costs of all segments, those of the same cause, worker and victim as one; the longest first.
std::vector<Cost> CostsOf(const std::vector<Segment>& path);

/// Of the source's sending to that rank that was the last to end; null where nothing was told.
const RouteTime* LastRoute(const RankTimeline& rank);
/// What the source told of all that it sent there: one span of kWrite; seconds 0 if it told nothing.
protocol::Span WriteOf(const UpdateTimeline& update, std::string_view source, std::string_view rank);

}  // namespace weightcast::control
