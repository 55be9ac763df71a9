#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <variant>

#include "transport/types.h"
#include "transport/verbs/immediate.h"
#include "weightcast/status.h"

/// What crosses a link's queue pairs as SENDs: docs/verbs.md. The parser is a pure function over hostile
/// bytes.
namespace weightcast::transport::verbs {

/// Every message is shorter; so is a receive buffer, and so it fits inline on every device we know.
inline constexpr size_t kMaxMessage = 64;

/// What a queue pair says first, on itself: it counts once this was acknowledged.
struct Probe {
  uint64_t cookie = 0;  ///< The receiver's.
  uint16_t queue = 0;
  uint32_t generation = 0;
};
/// A signal that does not fit into an immediate; on its lane, behind its data.
struct Record {
  Lease lease = 0;
  uint32_t transfer = 0;
  uint32_t chunk = 0;
  uint32_t chunks = 0;
  uint64_t checksum = 0;
};

// Control messages, in the order of their numbers.
/// The initiator's: every queue pair has been probed; those that failed follow as QueueOver.
struct Start {};
/// The responder has seen Start.
struct Started {};
/// The target has opened it, or answers AskGrant: it is open.
struct GrantOpened {
  GrantName grant;
  Lease lease = 0;
};
struct AskGrant {
  GrantName grant;
};
/// Answers AskGrant: it is not open.
struct GrantClosed {
  GrantName grant;
};
/// The target takes it back; answered by Fenced once nothing posted under it is under way.
struct RevokeGrant {
  GrantName grant;
  uint64_t fence = 0;
};
/// The target takes a region back; answered in the same way.
struct RegionOver {
  uint32_t id = 0;
  uint32_t generation = 0;
  uint64_t fence = 0;
};
struct Fenced {
  uint64_t fence = 0;
};
/// This side's end of a queue pair's generation is destroyed.
struct QueueOver {
  uint16_t queue = 0;
  uint32_t generation = 0;
};
/// The sender's port on this rail has another address now, for the queue pairs that are made from here on.
/// What is left out does not change, or is not needed to connect.
struct NewAddress {
  uint8_t rail = 0;
  uint8_t facts = 0;  ///< enum ibv_mtu; and kAddressGrh.
  uint8_t reads = 0;
  uint16_t lid = 0;
  uint16_t pkey = 0;
  std::array<uint8_t, 16> gid{};
};
inline constexpr uint8_t kAddressGrh = 0x80;
/// The initiator's end of the next recovery. The responder answers with its own, or with QueueOver.
struct QueueOffer {
  uint16_t queue = 0;
  uint32_t generation = 0;
  uint32_t number = 0;
  uint32_t psn = 0;
};
struct QueueAnswer {
  uint16_t queue = 0;
  uint32_t generation = 0;
  uint32_t number = 0;
  uint32_t psn = 0;
};
/// The sender closes the link and has destroyed its data queue pairs.
struct Bye {};

using ControlMessage = std::variant<Start, Started, GrantOpened, AskGrant, GrantClosed, RevokeGrant,
                                    RegionOver, Fenced, QueueOver, QueueOffer, QueueAnswer, Bye, NewAddress>;
/// A control message with its place among those of its link and direction.
struct Numbered {
  uint64_t cookie = 0;  ///< The receiver's.
  uint32_t number = 0;
  ControlMessage message;
};
using Message = std::variant<Probe, Record, Numbered>;

/// Bytes of at most kMaxMessage.
struct MessageBytes {
  std::array<char, kMaxMessage> bytes{};
  uint32_t length = 0;
  void append(const char* more, size_t size) {
    std::memcpy(bytes.data() + length, more, size);
    length += static_cast<uint32_t>(size);
  }
};
MessageBytes Encode(const Message& message);
/// nullopt for everything that Encode does not write.
std::optional<Message> ParseMessage(std::string_view bytes);

}  // namespace weightcast::transport::verbs
