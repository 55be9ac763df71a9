#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "control/packet.h"
#include "control/session_link.h"
#include "weightcast/status.h"

/// Envelopes as bytes, in a frame of a stream (docs/wire.md, "Control plane"). Pure functions.
namespace weightcast::control {

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
