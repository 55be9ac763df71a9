#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/varint.h"
#include "protocol/messages.h"

namespace weightcast::protocol {

/// The first byte of a message. Those of Hello and Refused are older than the others (greeting.h).
inline constexpr uint8_t kHelloKind = 0x0a;
inline constexpr uint8_t kRefusedKind = 0x12;
inline constexpr uint8_t kFirstWorkerKind = 0x20;      ///< Then in the order of WorkerMessage.
inline constexpr uint8_t kFirstControllerKind = 0x40;  ///< Likewise.
inline constexpr uint8_t kFirstReplyKind = 0x60;       ///< ObserverReply.
inline constexpr uint8_t kFirstObserverKind = 0x70;    ///< ObserverMessage.

/// The visitor that writes.
class Encoder {
 public:
  template <typename... Each>
  void operator()(const Each&... fields) {
    (Put(fields.value, fields.limit), ...);
  }

  /// All members of a struct.
  template <HasFields T>
  void Put(const T& message, Any = {}) {
    static_assert(kComplete<T>, "Fields leaves a member out");
    Fields(message, *this);
  }
  void PutByte(uint8_t byte) { out_.PutRaw({reinterpret_cast<const char*>(&byte), 1}); }
  void PutNumber(uint64_t number) { out_.Put(number); }
  void PutText(std::string_view text) { out_.PutText(text); }
  void Put(uint64_t number, Fixed) { PutRaw(number); }

  [[nodiscard]] size_t size() const { return out_.size(); }
  std::string Take() {
    std::string bytes = out_.Take();
    if (bytes.size() <= kMaxWholeBytes) bytes.shrink_to_fit();  // Many may wait for an answer.
    return bytes;
  }

 private:
  template <typename T, typename Limit>
    requires(std::is_integral_v<T> && !std::is_same_v<Limit, Fixed>)
  void Put(T number, Limit) {
    if constexpr (std::is_signed_v<T>) {
      const auto wide = static_cast<uint64_t>(int64_t{number});
      out_.Put(wide << 1 ^ (number < 0 ? ~uint64_t{0} : 0));
    } else {
      out_.Put(number);
    }
  }
  template <typename T>
    requires std::is_enum_v<T>
  void Put(T value, Any) {
    out_.Put(static_cast<uint64_t>(value));
  }
  void Put(double seconds, Any) { PutRaw(seconds); }
  template <typename Limit>
  void Put(const std::string& text, Limit) {
    out_.PutText(text);
  }
  void Put(const std::string& text, Cut limit) { out_.PutText(std::string_view(text).substr(0, limit.most)); }
  void Put(const Status& status, Any) {
    Put(status.code(), Any{});
    if (!status.ok()) Put(status.message(), Cut{});
  }
  template <typename T, typename Each>
  void Put(const std::vector<T>& list, const List<Each>& limit) {
    out_.Put(list.size());
    for (const T& element : list) Put(element, limit.each);
  }
  template <typename T>
  void PutRaw(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));  // x86-64 and aarch64 Linux are little-endian.
    out_.PutRaw({raw, sizeof(T)});
  }

  VarintWriter out_;
};

}  // namespace weightcast::protocol
