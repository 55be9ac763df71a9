#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "weightcast/status.h"

namespace weightcast {

/// Appends little-endian numbers and length-prefixed strings: for small messages between endpoints.
class ByteWriter {
 public:
  template <typename T>
    requires std::is_integral_v<T>
  void Put(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));  // x86-64 and aarch64 Linux are little-endian.
    out_.append(raw, sizeof(T));
  }
  void PutRaw(std::string_view bytes) { out_ += bytes; }
  /// Length as uint32, then the bytes.
  void PutString(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    out_ += text;
  }
  [[nodiscard]] const std::string& bytes() const { return out_; }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

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
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace weightcast
