#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/messages.h"
#include "protocol/observer_messages.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// How a part stands in its message; the numbers are those of the wire.
enum class PartKind : uint8_t { kWhole = 0, kPiece = 1, kLast = 2 };

/// An encoded message, cut into compressed pieces when it is large. Immutable: one packet may go to many.
struct Packet {
  std::string_view name;  ///< Of the message.
  std::vector<std::string> parts;
  bool pieces = false;  ///< The parts are pieces, even if there is but one.
  [[nodiscard]] size_t bytes() const;
  [[nodiscard]] PartKind kind(size_t part) const;
};
using SharedPacket = std::shared_ptr<const Packet>;

/// Errors: kExhausted for a message larger than protocol::kMaxMessageBytes.
Result<SharedPacket> MakePacket(const protocol::WorkerMessage& message);
Result<SharedPacket> MakePacket(const protocol::ControllerMessage& message);
Result<SharedPacket> MakePacket(const protocol::ObserverMessage& message);
Result<SharedPacket> MakePacket(const protocol::ObserverReply& message);

/// All parts of one message, as they came.
struct EncodedMessage {
  std::vector<std::string> parts;
  bool pieces = false;
};
/// The encoded message. Takes time for a large one. Errors: kCorrupt.
Result<std::string> Unpack(EncodedMessage message);

/// Collects the parts of one direction of one stream. The bytes may be hostile: what is kept is bounded by
/// the largest message.
class Assembler {
 public:
  /// The message once its last part is here. Errors: kProtocol; the stream is then useless.
  Result<std::optional<EncodedMessage>> Add(PartKind kind, std::string body);

 private:
  std::vector<std::string> pieces_;
  size_t bytes_ = 0;
};

}  // namespace weightcast::control
