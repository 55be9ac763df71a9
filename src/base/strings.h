#pragma once

#include <bit>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "weightcast/status.h"

namespace weightcast {

/// One part of what StrCat joins. It only refers to a text, so it is valid only during the call.
/// Not a template: StrCat stands in every message, and one function for all of them keeps the binary small.
class StrPart {
 public:
  explicit StrPart(std::string_view text) : text_(text.data()), number_(text.size()) {}
  explicit StrPart(const std::string& text) : StrPart(std::string_view(text)) {}
  explicit StrPart(const char* text) : StrPart(std::string_view(text)) {}
  explicit StrPart(bool value) : StrPart(std::string_view(value ? "true" : "false")) {}
  explicit StrPart(char value) : kind_(Kind::kCharacter), number_(static_cast<unsigned char>(value)) {}
  template <std::integral T>
  explicit StrPart(T value)
      : kind_(std::is_signed_v<T> ? Kind::kSigned : Kind::kUnsigned), number_(static_cast<uint64_t>(value)) {}
  explicit StrPart(double value) : kind_(Kind::kDouble), number_(std::bit_cast<uint64_t>(value)) {}

  void AppendTo(std::string& out) const;

 private:
  enum class Kind { kText, kCharacter, kSigned, kUnsigned, kDouble };
  const char* text_ = nullptr;
  Kind kind_ = Kind::kText;
  uint64_t number_;  ///< The length of a text; otherwise the value.
};

/// What StrCat calls. Most calls are on the way to an error, which `cold` keeps small and apart.
[[gnu::cold]] std::string Concatenate(std::initializer_list<StrPart> parts);

/// Concatenates strings, characters, integers, bools and doubles (six digits).
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  return Concatenate({StrPart(parts)...});
}

/// Why a call failed, in the words that StrCat makes of `parts`.
template <typename... Parts>
Status Error(Code code, const Parts&... parts) {
  return {code, Concatenate({StrPart(parts)...})};
}

/// What `text` makes of each element of `range` (something for StrCat), with `between` between each two.
template <typename Range, typename Text = std::identity>
std::string Join(const Range& range, std::string_view between, const Text& text = {}) {
  std::string out;
  std::string_view before;
  for (const auto& each : range) {
    out += StrCat(before, std::invoke(text, each));
    before = between;
  }
  return out;
}

/// "a", "a, b and 3 more": at most `most` of them by name.
std::string JoinSome(std::span<const std::string> names, size_t most);

/// The whole of `text` as a decimal number; nullopt for anything else or what does not fit.
template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The same of a hexadecimal one, with or without "0x".
template <typename T>
std::optional<T> ParseHex(std::string_view text) {
  if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// `value` with `digits` digits after the point, whatever the locale.
std::string Decimal(double value, int digits);
/// "1.5 GB", "640 KB": decimal units, as links and disks are sold.
std::string HumanBytes(double bytes);
/// Whether the bytes are UTF-8 as RFC 3629 has it: no overlong forms, no surrogates.
bool IsUtf8(std::string_view text);
/// Whether there is no ASCII control character in it.
bool IsPrintable(std::string_view text);
/// Lower-case hexadecimal of raw bytes.
std::string ToHex(std::string_view bytes);
/// strerror without its thread trouble: "Connection refused (111)".
std::string ErrnoText(int error);

}  // namespace weightcast
