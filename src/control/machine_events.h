#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/log.h"
#include "control/members.h"
#include "protocol/messages.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

/// What happens to the controller's machine of one model, and what it wants done.
namespace weightcast::control {

enum class TimerKind : uint8_t {
  kJoin,     ///< Of a group: its members wait for others.
  kPlan,     ///< Before the next plan, so that those who join together are planned together.
  kPrepare,  ///< A plan's members make their connections.
  kCatchUp,  ///< Some trainers have published, others have not.
  kStep,     ///< Of an engine: the present step of the update, or its repair.
  kFence,    ///< Ranks still fence what an abort left.
  kRetry,    ///< Of an engine that could not be reached: before it is planned again.
};
struct TimerId {
  TimerKind kind{};
  GroupId group = 0;  ///< kJoin, kStep, kRetry; otherwise 0.
  friend auto operator<=>(const TimerId&, const TimerId&) = default;
};

// --- Events ---------------------------------------------------------------------------------------------

/// A new session. The shell has told apart the same session on a new stream (Resumed).
struct Attached {
  SessionId session = 0;
  protocol::Hello hello;
};
struct StreamBroken {
  SessionId session = 0;
};
struct Resumed {
  SessionId session = 0;
};
/// Nothing was heard for a lease, or its stream offended.
struct Gone {
  SessionId session = 0;
  weightcast::Status reason;
};
/// The shards of Register and the contents of LandingMap are empty here: the shell has kept them.
struct MessageReceived {
  SessionId session = 0;
  protocol::WorkerMessage message;
};
struct TimerFired {
  TimerId timer;
};
struct PlanMade {
  uint32_t epoch = 0;
};
struct PlanFailed {
  uint32_t epoch = 0;
  weightcast::Status reason;
  std::vector<SessionId> concerned;  ///< Whose fault it is. Empty: the plan as a whole is too large.
};
using Event =
    std::variant<Attached, StreamBroken, Resumed, Gone, MessageReceived, TimerFired, PlanMade, PlanFailed>;

// --- Actions, to be done in order -----------------------------------------------------------------------

/// Done.seconds is the shell's to fill in: the machine has no clock.
struct Send {
  SessionId to = 0;
  protocol::ControllerMessage message;
};
/// The same to each of them, in this order: encoded once.
struct SendAll {
  std::vector<SessionId> to;
  protocol::ControllerMessage message;
};
/// Say Refused, then forget the session.
struct Refuse {
  SessionId session = 0;
  weightcast::Status reason;
};
/// The session is over: nothing more is sent and nothing of it is heard.
struct Forget {
  SessionId session = 0;
};
/// Plan for these workers with what they have registered; answered by PlanMade or PlanFailed.
struct MakePlan {
  uint32_t epoch = 0;
  std::vector<SessionId> sources;
  bool from_engines = false;  ///< The sources are ranks of engines that hold the version.
  std::vector<std::vector<SessionId>> engines;
};
/// Send Plan to every member of the plan made last, PeerLanding to its sources.
struct HandOut {
  uint32_t epoch = 0;
};
struct SetTimer {
  TimerId timer;
  Duration after{};  ///< Replaces the one of this name.
};
/// From here on it does not fire.
struct CancelTimer {
  TimerId timer;
};
/// For the log, and one more of that counter unless it is empty.
struct Note {
  LogLevel level{};
  std::string text;
  std::string_view counter = {};
};
using Action = std::variant<Send, SendAll, Refuse, Forget, MakePlan, HandOut, SetTimer, CancelTimer, Note>;
using Actions = std::vector<Action>;

}  // namespace weightcast::control
