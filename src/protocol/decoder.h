#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "base/varint.h"
#include "protocol/encoder.h"
#include "weightcast/status.h"

namespace weightcast::protocol {

template <typename T>
concept HasFault = requires(const T& message) { FaultOf(message); };

/// The visitor that reads, from bytes that may be hostile. Each call says whether all went well; after the
/// first fault nothing more is read, and status() names the message and the field.
class Decoder {
 public:
  Decoder(std::string_view message, std::string_view bytes) : message_(message), in_(bytes) {}

  template <typename... Each>
  bool operator()(const Each&... fields) {
    return (Take(fields) && ...);
  }

  /// All members of a struct, and what holds between them.
  template <HasFields T>
  bool Get(T& message, Any = {}) {
    static_assert(kComplete<T>, "Fields leaves a member out");
    if (!Fields(message, *this)) return false;
    if constexpr (HasFault<T>) {
      if (const std::string fault = FaultOf(message); !fault.empty()) return Fail(StrCat(": ", fault));
    }
    return true;
  }
  bool GetByte(uint8_t expected) {
    const std::string_view raw = in_.GetRaw(1);
    return (in_.ok() && static_cast<uint8_t>(raw.front()) == expected) || CutShort();
  }
  bool GetNumber(uint64_t& number) {
    number = in_.Get(std::numeric_limits<uint64_t>::max());
    return in_.ok() || CutShort();
  }
  /// Bytes whose length stands before them.
  bool GetText(std::string_view& text, size_t most = kMaxMessageBytes) {
    uint64_t size = 0;
    if (!GetNumber(size)) return false;
    if (size > most) return Fail(StrCat(" has ", size, " bytes; at most ", most, " are allowed"));
    text = in_.GetRaw(size);
    return in_.ok() || CutShort();
  }
  bool Get(uint64_t& number, Fixed) { return GetRaw(number); }

  [[nodiscard]] size_t left() const { return in_.left(); }
  /// `what` is told of the member that is being read: after a space, or a colon.
  bool Fail(std::string what) {
    what_ = std::move(what);
    return false;
  }
  /// ok if nothing was wrong and nothing is left over.
  [[nodiscard]] Status status() {
    if (what_.empty() && in_.left() > 0) Fail(" is longer than its fields");
    if (what_.empty()) return Status::Ok();
    return Error(Code::kProtocol, "a ", message_, " from the network", path_.empty() ? "" : ": ", path_,
                 what_, "; use the same weightcast on all hosts");
  }

 private:
  template <typename T, typename Limit>
  bool Take(const Field<T, Limit>& field) {
    const bool fine = Get(field.value, field.limit);
    if (!fine) path_ = path_.empty() ? std::string(field.name) : StrCat(field.name, ".", path_);
    return fine;
  }
  bool CutShort() { return Fail(" is cut short or malformed"); }

  template <typename T>
    requires std::is_integral_v<T>
  bool Get(T& number, Range range) {
    uint64_t raw = 0;
    if (!GetNumber(raw)) return false;
    const auto outside = [&](auto value) {
      if (std::cmp_greater_equal(value, range.least) && std::cmp_less_equal(value, range.most)) return false;
      Fail(StrCat(" ", value, " is not between ", range.least, " and ", range.most));
      return true;
    };
    if constexpr (std::is_signed_v<T>) {
      const auto value = static_cast<int64_t>(raw >> 1 ^ (~(raw & 1) + 1));
      number = static_cast<T>(value);
      return !outside(value);
    } else {
      number = static_cast<T>(raw);
      return !outside(raw);
    }
  }
  template <typename T>
    requires std::is_integral_v<T>
  bool Get(T& number, Any) {
    if constexpr (std::is_same_v<T, uint64_t>) {
      return GetNumber(number);
    } else {
      using Limits = std::numeric_limits<T>;
      return Get(number, Range{Limits::min(), Limits::max()});
    }
  }
  template <typename T>
    requires std::is_enum_v<T>
  bool Get(T& value, Any) {
    uint64_t number = 0;
    if (!GetNumber(number)) return false;
    if (number > static_cast<uint64_t>(LastOf(T{}))) return Fail(StrCat(" ", number, " is unknown"));
    value = static_cast<T>(number);
    return true;
  }
  bool Get(double& seconds, Any) {
    if (!GetRaw(seconds)) return false;
    return (std::isfinite(seconds) && seconds >= 0) || Fail(" is not a number of seconds from 0");
  }

  bool Get(std::string& text, Bytes limit) {
    std::string_view bytes;
    if (!GetText(bytes, limit.most)) return false;
    text = bytes;
    return true;
  }
  bool Get(std::string& text, Hidden limit) { return Get(text, Bytes{limit.most}); }
  bool Get(std::string& text, Cut limit) { return Get(text, Bytes{limit.most}); }
  bool Get(std::string& text, Name limit) {
    return Get(text, Bytes{limit.most}) && (IsPrintable(text) || Fail(" has control characters"));
  }
  bool Get(std::string& text, Label) {
    if (!Get(text, Bytes{kMaxNameBytes})) return false;
    const Status label = CheckLabel(text);
    return label.ok() || Fail(StrCat(" is refused: ", label.message()));
  }
  bool Get(Status& status, Any) {
    Code code = Code::kOk;
    std::string text;
    if (!Take(F("code", code))) return false;
    if (code == Code::kOk) return true;
    if (!Take(F("message", text, Cut{}))) return false;
    status = {code, std::move(text)};
    return true;
  }

  template <typename T, typename Each>
  bool Get(std::vector<T>& list, const List<Each>& limit) {
    uint64_t count = 0;
    if (!GetNumber(count)) return false;
    if (count > limit.most)
      return Fail(StrCat(" has ", count, " entries; at most ", limit.most, " are allowed"));
    if (count > in_.left() / LeastBytes<T>())
      return Fail(StrCat(" has ", count, " entries, more than there are bytes for"));
    list.resize(count);
    return std::all_of(list.begin(), list.end(), [&](T& element) { return Get(element, limit.each); });
  }
  /// What an element takes at least.
  template <typename T>
  static size_t LeastBytes() {
    if constexpr (HasFields<T>) {
      static const size_t least = [] {
        Encoder out;
        out.Put(T{});
        return out.size();
      }();
      return least;
    } else {
      return 1;
    }
  }
  template <typename T>
  bool GetRaw(T& value) {
    const std::string_view raw = in_.GetRaw(sizeof(T));
    if (!in_.ok()) return CutShort();
    std::memcpy(&value, raw.data(), sizeof(T));
    return true;
  }

  const std::string_view message_;
  VarintReader in_;
  std::string path_;
  std::string what_;
};

}  // namespace weightcast::protocol
