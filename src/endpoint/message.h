#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weightcast/status.h"

namespace weightcast::endpoint {

// What endpoints say to each other over a control channel: docs/wire.md, "handshake". Parsers are pure
// functions of hostile bytes; whatever they give lies within the limits below.

enum class MessageType : uint8_t {
  kHello = 1,
  kProof = 2,
  kVerdict = 3,
  kOffers = 16,
  kAnswers = 17,
  kPath = 18,
  kChosen = 19,
  kHeartbeat = 20,
  kShutdown = 21,
  kNotice = 22,
  kCredit = 23,
};

struct Message {
  MessageType type{};
  std::string payload;
};

inline constexpr uint16_t kProtocolVersion = 2;
inline constexpr size_t kMaxName = 256;  ///< Job, role, engine.
inline constexpr size_t kMaxReason = 1024;

/// kVerdict and kShutdown: an outcome with its reason. The form is the same in all protocol versions.
std::string EncodeOutcome(const Status& status);
/// The text is made printable. Nothing when malformed.
std::optional<Status> ParseOutcome(std::string_view payload);

/// For text from a peer that is shown to a person: unprintable bytes become '?', and it ends at `limit`.
std::string Printable(std::string_view text, size_t limit = kMaxReason);

}  // namespace weightcast::endpoint
