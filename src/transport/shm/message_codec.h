#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

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
inline constexpr uint8_t kProtocolVersion = 3;

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
/// Writes fields: numbers, one byte for a bool or an enum, arrays and pairs as their elements.
class FieldWriter {
 public:
  /// Begins a message.
  explicit FieldWriter(MessageKind kind);
  template <std::integral T>
  void Put(T value) {
    out_.Put(value);
  }
  template <typename T>
    requires std::is_enum_v<T>
  void Put(T value) {
    out_.Put(static_cast<uint8_t>(value));
  }
  template <typename T, size_t kSize>
  void Put(const std::array<T, kSize>& values) {
    for (const T& value : values) Put(value);
  }
  template <typename X, typename Y>
  void Put(const std::pair<X, Y>& values) {
    Put(values.first);
    Put(values.second);
  }
  std::string Take() { return out_.Take(); }

 private:
  ByteWriter out_;
};

/// Reads what FieldWriter wrote. Any number but 0 is true, and an unknown Code is kInternal; of other enums
/// IsPlausible tells.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : in_(bytes) {}
  template <std::integral T>
  void Get(T& value) {
    value = in_.Get<T>();
  }
  void Get(bool& value) { value = in_.Get<uint8_t>() != 0; }
  template <typename T>
    requires std::is_enum_v<T>
  void Get(T& value) {
    value = static_cast<T>(in_.Get<uint8_t>());
  }
  void Get(Code& value) {
    const auto raw = in_.Get<uint8_t>();
    value = raw <= static_cast<uint8_t>(Code::kInternal) ? static_cast<Code>(raw) : Code::kInternal;
  }
  template <typename T, size_t kSize>
  void Get(std::array<T, kSize>& values) {
    for (T& value : values) Get(value);
  }
  template <typename X, typename Y>
  void Get(std::pair<X, Y>& values) {
    Get(values.first);
    Get(values.second);
  }
  [[nodiscard]] bool ok() const { return in_.ok(); }
  [[nodiscard]] bool AtEnd() const { return in_.AtEnd(); }

 private:
  ByteReader in_;
};

// A message may overload these, beside its struct.
/// What it holds beyond its fields crosses behind them.
template <typename Message>
void PutRest(FieldWriter& /*out*/, const Message& /*message*/) {}
template <typename Message>
void GetRest(FieldReader& /*in*/, Message& /*message*/) {}
/// Whether it is one that Encode writes, as far as the types of its fields do not say so.
template <typename Message>
bool IsPlausible(const Message& /*message*/) {
  return true;
}

template <typename Message>
  requires requires(Message& message) { Layout(message); }
std::string Encode(Message message) {
  const auto layout = Layout(message);
  FieldWriter out(layout.kind);
  std::apply([&out](const auto&... field) { (out.Put(field), ...); }, layout.fields);
  PutRest(out, message);
  return out.Take();
}

template <typename Message>
Result<Message> Decode(std::string_view bytes) {
  Message message;
  const auto layout = Layout(message);
  const auto kind = KindOf(bytes);
  if (!kind.ok() || *kind != layout.kind) return Malformed(layout.name);
  FieldReader in(bytes.substr(2));
  std::apply([&in](auto&... field) { (in.Get(field), ...); }, layout.fields);
  GetRest(in, message);
  if (!in.AtEnd() || !IsPlausible(message)) return Malformed(layout.name);
  return message;
}

}  // namespace weightcast::transport::shm
