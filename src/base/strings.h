#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>

namespace weightcast {

namespace internal {
inline void Append(std::string& out, std::string_view text) { out += text; }
inline void Append(std::string& out, const char* text) { out += text; }
inline void Append(std::string& out, char character) { out += character; }
inline void Append(std::string& out, bool value) { out += value ? "true" : "false"; }
template <std::integral T>
void Append(std::string& out, T value) {
  out += std::to_string(value);
}
inline void Append(std::string& out, double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 6).ptr;
  out.append(buffer, end);
}
}  // namespace internal

/// Concatenates strings, characters, integers, bools and doubles (six digits).
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::string out;
  (internal::Append(out, parts), ...);
  return out;
}

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
