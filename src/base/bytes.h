#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "weightcast/status.h"

namespace weightcast {

/// Appends to an `Out`, which has std::string's append(bytes, size): for small messages between endpoints.
template <typename Out>
class BasicByteWriter {
 public:
  BasicByteWriter() = default;
  explicit BasicByteWriter(Out out) : out_(std::move(out)) {}

  /// Little-endian numbers; one byte for a bool or an enum; a text as PutString; arrays, pairs and tuples as
  /// their elements.
  template <typename... T>
  void Put(const T&... values) {
    (PutOne(values), ...);
  }
  void PutRaw(std::string_view bytes) { out_.append(bytes.data(), bytes.size()); }
  /// Length as uint32, then the bytes.
  void PutString(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    PutRaw(text);
  }
  [[nodiscard]] const Out& bytes() const { return out_; }
  Out Take() { return std::move(out_); }

 private:
  template <typename T>
  void PutOne(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      static_assert(sizeof(T) == 1 || std::is_same_v<T, Code>, "an enum of one byte");
      PutOne(static_cast<uint8_t>(value));
    } else if constexpr (std::is_integral_v<T>) {
      char raw[sizeof(T)];
      std::memcpy(raw, &value, sizeof(T));  // x86-64 and aarch64 Linux are little-endian.
      out_.append(raw, sizeof(T));
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      PutString(value);
    } else {
      std::apply([this](const auto&... elements) { this->Put(elements...); }, value);
    }
  }

  Out out_;
};
using ByteWriter = BasicByteWriter<std::string>;

/// What ByteWriter::Put writes of these values.
template <typename... T>
std::string PackBytes(const T&... values) {
  ByteWriter out;
  out.Put(values...);
  return out.Take();
}

/// Reads what ByteWriter wrote, from bytes that may be hostile: after the first read past the end
/// every read gives zero or empty and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_integral_v<T>
  T Get() {
    T value{};
    if (const auto raw = GetRaw(sizeof(T)); raw.size() == sizeof(T))
      std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  /// What Put wrote. Any byte but 0 is true, and an unknown Code is kInternal; other enums are not checked.
  template <typename... T>
    requires(sizeof...(T) > 0)
  void Get(T&&... values) {
    (GetOne(values), ...);
  }
  std::string_view GetRaw(size_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const auto taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view GetString(size_t limit) {
    const auto size = Get<uint32_t>();
    if (size > limit) ok_ = false;
    return GetRaw(size);
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool AtEnd() const { return ok_ && rest_.empty(); }
  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  template <typename T>
  void GetOne(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = Get<uint8_t>() != 0;
    } else if constexpr (std::is_same_v<T, Code>) {
      const auto raw = Get<uint8_t>();
      value = raw <= static_cast<uint8_t>(Code::kInternal) ? static_cast<Code>(raw) : Code::kInternal;
    } else if constexpr (std::is_enum_v<T>) {
      static_assert(sizeof(T) == 1, "an enum of one byte");
      value = static_cast<T>(Get<uint8_t>());
    } else if constexpr (std::is_integral_v<T>) {
      value = Get<T>();
    } else {
      std::apply([this](auto&... elements) { (this->GetOne(elements), ...); }, value);
    }
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace weightcast
