#include "protocol/codec.h"
#include "protocol/encoder.h"
#include "protocol/greeting.h"

namespace weightcast::protocol {
namespace {

template <typename T>
std::string EncodeAs(uint8_t kind, const T& message) {
  Encoder out;
  out.PutByte(kind);
  out.Put(message);
  return out.Take();
}

template <typename Message>
std::string EncodeVariant(uint8_t first_kind, const Message& message) {
  const auto kind = static_cast<uint8_t>(first_kind + message.index());
  return std::visit([&](const auto& what) { return EncodeAs(kind, what); }, message);
}

}  // namespace

std::string Encode(const WorkerMessage& message) {
  if (const auto* hello = std::get_if<Hello>(&message)) return EncodeGreeting(*hello);
  return EncodeVariant(kFirstWorkerKind, message);
}
std::string Encode(const ControllerMessage& message) {
  if (const auto* refused = std::get_if<Refused>(&message)) return EncodeGreeting(*refused);
  return EncodeVariant(kFirstControllerKind, message);
}
std::string Encode(const ObserverMessage& message) { return EncodeVariant(kFirstObserverKind, message); }
std::string Encode(const ObserverReply& message) { return EncodeVariant(kFirstReplyKind, message); }

}  // namespace weightcast::protocol
