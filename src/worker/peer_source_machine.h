#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "protocol/messages.h"
#include "weightcast/status.h"
#include "weightcast/version.h"
#include "worker/machine_actions.h"
#include "worker/sendings.h"

/// An inference rank as a source for others (docs/protocol.md, "Repair: another holder") as a pure function:
/// (state, event) -> state, actions. It has no clock, thread or I/O; the runtime (worker/peer_source.cc) and
/// tests drive it alike. What the rank receives itself is the business of inference_machine.h; the two meet
/// in VersionToLend, MemoryLent, MemoryFree and ReclaimMemory there, and in Lends and MemoryReclaimed here.
namespace weightcast::worker {

using PeerSourceState = SourceState;

// --- Events beside the controller's messages ------------------------------------------------------

struct PeerSourcePlanArrived {  ///< Stands for a protocol::Plan that gives.
  uint32_t epoch = 0;
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

using PeerSourceEvent =
    std::variant<protocol::Welcome, protocol::Stop, protocol::Release, PeerSourcePlanArrived, SendPlanReady,
                 SendPlanFailed, PeerSourceStart, SendEnded, SendFenced, MemoryReclaimed, SessionEnded>;

// --- Actions --------------------------------------------------------------------------------------

using PeerSourceAction = std::variant<SendMessage, BeginSending, StopSending>;

/// Takes one event. Whenever Lends has changed, the rank's own machine must hear MemoryLent or MemoryFree
/// before its next event.
std::vector<PeerSourceAction> Advance(PeerSourceState& state, const PeerSourceEvent& event);

/// Whether anybody may still read the landing memory.
inline bool Lends(const PeerSourceState& state) { return !state.sendings.empty(); }

}  // namespace weightcast::worker
