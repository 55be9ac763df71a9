#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "base/bytes.h"
#include "weightcast/status.h"

/// The messages on a link's Unix socket as bytes. Beside each struct stands its Layout, which names its
/// fields in the order in which they cross. Decoding is a pure function over hostile bytes: kProtocol for
/// everything that Encode does not write.
namespace weightcast::transport::shm {

enum class MessageKind : uint8_t {
  kHello = 1,  ///< With descriptors: inbox, fence page.
  kTrial,
  kVerdict,
  kWantRegion,
  kRegion,  ///< With the region's descriptor where `code` is kOk.
  kRing,    ///< With the sender's payload ring where `code` is kOk.
  kBye,     ///< The sender will touch nothing of ours any more.
  kBell,    ///< Nothing but a wake-up.
  // Device memory: source_messages.h.
  kWantSource,
  kSourceOffer,
  kSourceHandles,
  kSourceVerdict,
  kDrop,
  kDropped,
  // Staging.
  kWantStage,
  kStage,  ///< With the sender's staging ring where `code` is kOk.
};
inline constexpr uint8_t kProtocolVersion = 4;

/// The kind of a message of this protocol version.
Result<MessageKind> KindOf(std::string_view bytes);
Status Malformed(std::string_view what);

template <typename... Fields>
struct MessageLayout {
  MessageKind kind{};
  std::string_view name;  ///< In errors.
  std::tuple<Fields&...> fields;
};
template <typename... Fields>
MessageLayout<Fields...> LayoutOf(MessageKind kind, std::string_view name, Fields&... fields) {
  return {kind, name, {fields...}};
}
// A message may overload these, beside its struct.
/// What it holds beyond its fields crosses behind them.
template <typename Message>
void PutRest(ByteWriter& /*out*/, const Message& /*message*/) {}
template <typename Message>
void GetRest(ByteReader& /*in*/, Message& /*message*/) {}
/// Whether it is one that Encode writes, as far as the types of its fields do not say so.
template <typename Message>
bool IsPlausible(const Message& /*message*/) {
  return true;
}

template <typename Message>
  requires requires(Message& message) { Layout(message); }
std::string Encode(Message message) {
  const auto layout = Layout(message);
  ByteWriter out;
  out.Put(kProtocolVersion, layout.kind, layout.fields);
  PutRest(out, message);
  return out.Take();
}

template <typename Message>
Result<Message> Decode(std::string_view bytes) {
  Message message;
  const auto layout = Layout(message);
  const auto kind = KindOf(bytes);
  if (!kind.ok() || *kind != layout.kind) return Malformed(layout.name);
  ByteReader in(bytes.substr(2));
  in.Get(layout.fields);
  GetRest(in, message);
  if (!in.AtEnd() || !IsPlausible(message)) return Malformed(layout.name);
  return message;
}

/// What `handle` makes of the message.
template <typename Message, typename Handle>
Status DecodeFor(std::string_view bytes, const Handle& handle) {
  WC_ASSIGN_OR_RETURN(const Message message, Decode<Message>(bytes));
  return handle(message);
}

}  // namespace weightcast::transport::shm
