#include "control/packet.h"

#include <utility>
#include <variant>

#include "base/strings.h"
#include "plan/table_format.h"
#include "protocol/codec.h"
#include "protocol/limits.h"

namespace weightcast::control {
namespace {

/// What compression and the heads of pieces may add.
constexpr size_t kMostOverhead = size_t{1} << 20;

constexpr std::string_view kFewerShards = "register fewer and larger shards per rank";
constexpr std::string_view kShareTables =
    "register fewer and larger shards per rank, or name a folder that all hosts share in setting tables";
constexpr std::string_view kFewerEngines =
    "ask for one model or update, or let several controllers share the engines";

/// `advice`: how such messages become smaller.
template <typename Message>
Result<SharedPacket> Cut(const Message& message, std::string_view advice = kFewerShards) {
  std::string encoded = protocol::Encode(message);
  auto packet = std::make_shared<Packet>();
  packet->name = protocol::NameOf(message);
  if (encoded.size() > protocol::kMaxMessageBytes)
    return Error(Code::kExhausted, "the message ", packet->name, " would have ", encoded.size(),
                 " bytes; at most ", protocol::kMaxMessageBytes, " can be sent: ", advice);
  if (encoded.size() <= protocol::kMaxWholeBytes) {
    packet->parts.push_back(std::move(encoded));
  } else {
    packet->pieces = true;
    WC_ASSIGN_OR_RETURN(packet->parts, plan::SplitPieces(encoded));
  }
  return SharedPacket(std::move(packet));
}

}  // namespace

size_t Packet::bytes() const {
  size_t sum = sizeof(Packet);
  for (const std::string& part : parts) sum += part.size() + sizeof(std::string);
  return sum;
}

PartKind Packet::kind(size_t part) const {
  if (!pieces) return PartKind::kWhole;
  return part + 1 == parts.size() ? PartKind::kLast : PartKind::kPiece;
}

Result<SharedPacket> MakePacket(const protocol::WorkerMessage& message) { return Cut(message); }
Result<SharedPacket> MakePacket(const protocol::ControllerMessage& message) {
  return Cut(message, std::holds_alternative<protocol::Plan>(message) ? kShareTables : kFewerShards);
}
Result<SharedPacket> MakePacket(const protocol::ObserverMessage& message) { return Cut(message); }
Result<SharedPacket> MakePacket(const protocol::ObserverReply& message) {
  return Cut(message, kFewerEngines);
}

Result<std::string> Unpack(EncodedMessage message) {
  if (!message.pieces) return std::move(message.parts.front());
  return plan::JoinPieces(message.parts, protocol::kMaxMessageBytes);
}

Result<std::optional<EncodedMessage>> Assembler::Add(PartKind kind, std::string body) {
  if (kind == PartKind::kWhole && !pieces_.empty())
    return Status(Code::kProtocol,
                  "a whole message came between the pieces of another; use the same weightcast on all hosts");
  bytes_ += body.size() + sizeof(std::string);
  if (bytes_ > protocol::kMaxMessageBytes + kMostOverhead)
    return Error(Code::kProtocol, "the pieces of a message have more than ", protocol::kMaxMessageBytes,
                 " bytes; use the same weightcast on all hosts");
  pieces_.push_back(std::move(body));
  if (kind == PartKind::kPiece) return std::optional<EncodedMessage>();
  bytes_ = 0;
  return std::optional<EncodedMessage>(
      EncodedMessage{.parts = std::exchange(pieces_, {}), .pieces = kind == PartKind::kLast});
}

}  // namespace weightcast::control
