#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "protocol/messages.h"
#include "weightcast/status.h"
#include "weightcast/version.h"
#include "worker/machine_actions.h"

/// An inference rank as a source for others (docs/protocol.md, "Repair: another holder") as a pure function:
/// (state, event) -> state, actions. It has no clock, thread or I/O; the runtime (worker/peer_source.cc) and
/// tests drive it alike. What the rank receives itself is the business of inference_machine.h; the two meet
/// in VersionToLend, MemoryLent, MemoryFree and ReclaimMemory there, and in Lends and MemoryReclaimed here.
namespace weightcast::worker {

/// The giving of one update to one destination.
struct Giving {
  protocol::UpdateId update;
  uint32_t destination = 0;
  uint32_t part = 0;
  bool quiet = false;  ///< Stopped or over: nothing is said of it; it waits until nobody reads for it.
  friend bool operator==(const Giving&, const Giving&) = default;
};

struct PeerSourceState {
  bool ended = false;  ///< The session is over for good.
  protocol::Term term;
  uint32_t epoch = 0;  ///< Of the plan in which this rank gives; 0: none.
  bool prepared = false;
  std::vector<Giving> givings;
  friend bool operator==(const PeerSourceState&, const PeerSourceState&) = default;
};

// --- Events beside the controller's messages ------------------------------------------------------

struct PeerSourcePlanArrived {  ///< Stands for a protocol::Plan that gives.
  uint32_t epoch = 0;
};
struct PeerSourcePrepared {  ///< Table read, every destination connected.
  uint32_t epoch = 0;
};
struct PeerSourcePlanFailed {
  uint32_t epoch = 0;
  Status reason;
  int64_t destination = -1;  ///< Its number in the table, when only the path to it failed.
};
struct PeerSourceStart {  ///< Of one destination.
  StartOrder start;
  Version held;  ///< VersionToLend at this moment.
};
/// The rank needs its memory for itself: nothing may be read from it any more.
struct MemoryReclaimed {
  Status reason;
  bool leaves = false;  ///< It is not even registered any more: the plan is void.
};
struct PeerSourceEnded {};  ///< The session.

using PeerSourceEvent =
    std::variant<protocol::Welcome, protocol::Stop, protocol::Release, PeerSourcePlanArrived,
                 PeerSourcePrepared, PeerSourcePlanFailed, PeerSourceStart, SendEnded, SendFenced,
                 MemoryReclaimed, PeerSourceEnded>;

// --- Actions --------------------------------------------------------------------------------------

using PeerSourceAction = std::variant<SendMessage, BeginSending, StopSending>;

/// Takes one event. Whenever Lends has changed, the rank's own machine must hear MemoryLent or MemoryFree
/// before its next event.
std::vector<PeerSourceAction> Advance(PeerSourceState& state, const PeerSourceEvent& event);

/// Whether anybody may still read the landing memory.
inline bool Lends(const PeerSourceState& state) { return !state.givings.empty(); }

}  // namespace weightcast::worker
