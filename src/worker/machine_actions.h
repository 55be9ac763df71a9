#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "protocol/messages.h"
#include "weightcast/status.h"

/// What more than one machine asks of its runtime, and hears from it.
namespace weightcast::worker {

// --- Actions --------------------------------------------------------------------------------------

struct SendMessage {
  protocol::WorkerMessage message;
  friend bool operator==(const SendMessage&, const SendMessage&) = default;
};
/// Sends Register and LandingMap, if the user has registered.
struct SendRegistration {
  friend bool operator==(const SendRegistration&, const SendRegistration&) = default;
};
/// What a Start says of one destination.
struct StartOrder {
  protocol::UpdateId update;
  Version version;
  uint32_t destination = 0;
  uint32_t slot = 0;
  uint64_t grant = 0;
  uint32_t part = 0;
  bool compares = false;  ///< The destination wants SentDigests.
  friend bool operator==(const StartOrder&, const StartOrder&) = default;
};
inline StartOrder OrderOf(const protocol::Start& start, const protocol::DestinationGrant& grant) {
  return {.update = start.update,
          .version = start.version,
          .destination = grant.destination,
          .slot = grant.slot,
          .grant = grant.grant,
          .part = start.part,
          .compares = grant.compares};
}
struct BeginSending {
  StartOrder start;
  friend bool operator==(const BeginSending&, const BeginSending&) = default;
};
/// Ends the transfers of every part; SendFenced follows, for each.
struct StopSending {
  protocol::UpdateId update;
  uint32_t destination = 0;
  friend bool operator==(const StopSending&, const StopSending&) = default;
};

// --- Events ---------------------------------------------------------------------------------------

struct SessionEnded {  ///< For good.
  Status reason;
};
struct SendPlanReady {  ///< Table read, every destination connected.
  uint32_t epoch = 0;
};
struct SendPlanFailed {
  uint32_t epoch = 0;
  Status reason;
  int64_t destination = -1;  ///< Its number in the table, when only the path to it failed.
};
/// The last transfer of a sending has ended; with an error, some may still be read from memory.
struct SendEnded {
  protocol::UpdateId update;
  uint32_t destination = 0;
  uint32_t part = 0;
  Status status;
  bool path = false;  ///< The error is of the path to this destination alone.
};
/// Nobody reads the sources for this sending any more. Comes once, after SendEnded or after it was stopped.
struct SendFenced {
  protocol::UpdateId update;
  uint32_t destination = 0;
  uint32_t part = 0;
  std::vector<protocol::Span> spans = {};  ///< What the time of the sending went into.
};

// --- Transitions ----------------------------------------------------------------------------------

/// What one event changes, and what is to be done after it. The parts of a machine share it.
template <typename State, typename Action>
struct Transition {
  State& state;
  std::vector<Action> actions = {};

  void Add(Action action) { actions.push_back(std::move(action)); }
  void Send(protocol::WorkerMessage message) { Add(SendMessage{std::move(message)}); }
};

}  // namespace weightcast::worker
