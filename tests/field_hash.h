#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "protocol/messages.h"
#include "weightcast/status.h"
#include "weightcast/version.h"

namespace weightcast::protocol {

/// A hash over every field that it is called with, vectors with their lengths: fingerprints of messages and
/// of the protocol's state machines. `Derived` says by further Add functions, public, what structs consist of
/// that are no messages, and `using FieldHash<Derived>::Add`.
template <typename Derived>
class FieldHash {
 public:
  template <typename... Each>
  void operator()(const Each&... fields) {
    (static_cast<Derived&>(*this).Add(fields), ...);
  }
  [[nodiscard]] uint64_t Hash() const { return Hash64(std::string_view(out_.bytes())); }

  template <typename T>
    requires std::is_integral_v<T>
  void Add(T value) {
    out_.Put(value);
  }
  template <typename T>
    requires std::is_enum_v<T>
  void Add(T value) {
    out_.Put(static_cast<int>(value));
  }
  void Add(double value) { out_.PutRaw({reinterpret_cast<const char*>(&value), sizeof value}); }
  void Add(const std::string& text) { out_.PutString(text); }
  void Add(const weightcast::Status& status) { (*this)(status.code(), status.message()); }
  void Add(const Version& version) { (*this)(version.run, version.number, version.origin); }  // As ==.
  template <HasFields T>
  void Add(const T& message) {
    static_assert(kComplete<T>, "Fields leaves a member out");
    Fields(message, [this](const auto&... fields) { (*this)(fields.value...); });
  }
  template <typename T>
  void Add(const std::optional<T>& value) {
    (*this)(value.has_value());
    if (value) (*this)(*value);
  }
  template <typename T>
  void Add(const std::vector<T>& values) {
    (*this)(values.size());
    for (const T& value : values) (*this)(value);
  }

 private:
  ByteWriter out_;
};

}  // namespace weightcast::protocol
