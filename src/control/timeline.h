#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/messages.h"

/// What one update took, as its controller saw it: plain data (docs/explain.md). Times are seconds since the
/// update began, on the controller's clock; kNever: it did not happen.
namespace weightcast::control {

inline constexpr double kNever = -1;

struct RouteTime {
  std::string source;  ///< "trainer 0"
  uint64_t bytes = 0;
  double seconds = 0;  ///< From the grants on until the last byte, in all parts.
};

struct RankTimeline {
  std::string name;  ///< "engine rollout-1 rank 0"
  std::string engine;
  struct Part {
    double asked = kNever;
    double granted = kNever;
    double started = kNever;  ///< The last of its sources was told.
    double ready = kNever;
  };
  std::vector<Part> parts = {};
  double committing = kNever;  ///< Was told to.
  double committed = kNever;
  double serve = kNever;  ///< Was told to.
  double serving = kNever;
  std::vector<RouteTime> routes = {};
  std::vector<protocol::Span> spans = {};  ///< As it told them.
};

struct SourceTimeline {
  std::string name;
  double published = kNever;  ///< Never of inference ranks.
  double started = kNever;    ///< Was told to send, for the first time.
  double waited = kNever;     ///< From publishing until that, on its own clock.
  struct Sending {
    std::string to;
    protocol::Span span;
  };
  std::vector<Sending> sendings = {};
};

/// An order to an EngineControl.
struct CommandTime {
  std::string engine;
  protocol::Command command{};
  double asked = kNever;
  double answered = kNever;
};

/// The controller did not run, or was busy with something else.
struct StallTime {
  double begin = 0;
  double seconds = 0;
};

struct UpdateTimeline {
  std::string model = {};
  Version version = {};
  protocol::UpdateId id = {};  ///< Of its last attempt.
  int64_t began_unix_ms = 0;   ///< For people: when it began.
  double opened = kNever;      ///< The first grants were asked for.
  double done = kNever;        ///< The trainers were told its end.
  bool met_policy = false;
  std::string reason = {};  ///< Why not.
  std::vector<RankTimeline> ranks = {};
  std::vector<SourceTimeline> sources = {};
  std::vector<CommandTime> commands = {};
  std::vector<StallTime> stalls = {};

  [[nodiscard]] uint64_t bytes() const {
    uint64_t sum = 0;
    for (const RankTimeline& rank : ranks)
      for (const RouteTime& route : rank.routes) sum += route.bytes;
    return sum;
  }
};

}  // namespace weightcast::control
