#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "control/packet.h"
#include "control/session_link.h"
#include "weightcast/status.h"

/// What stands before a message, or a piece of one, in a frame of a stream (docs/wire.md, "Control plane").
/// Pure functions.
namespace weightcast::control {

struct Envelope {
  uint64_t number = 0;        ///< Of the message within its session and direction, from 1; 0: not numbered.
  uint64_t acknowledged = 0;  ///< All of the other side's numbers up to here have arrived.
  uint64_t session = 0;       ///< Hello: the session to go on with, 0: none. Welcome: the session.
  PartKind kind = PartKind::kWhole;
  friend bool operator==(const Envelope&, const Envelope&) = default;
};

inline constexpr size_t kEnvelopeHead = 25;

/// The frame's body.
std::string Enclose(const Envelope& envelope, std::string_view part);
std::string Enclose(const Outgoing& out);

struct Opened {
  Envelope envelope;
  std::string part;
};
/// Errors: kProtocol for a body that is too short or of an unknown kind.
Result<Opened> OpenEnvelope(std::string body);

}  // namespace weightcast::control
