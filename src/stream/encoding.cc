#include "stream/encoding.h"

#include <cstdint>

namespace weightcast::stream {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::string_view kHex = "0123456789ABCDEF";

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_';
}

}  // namespace

std::string ToBase64(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 4 / 3 + 2);  // Secrets pass here: growing would leave copies behind.
  uint32_t held = 0;
  int bits = 0;
  for (const char byte : bytes) {
    held = held << 8 | static_cast<uint8_t>(byte);
    for (bits += 8; bits >= 6; bits -= 6) text += kAlphabet[held >> (bits - 6) & 63];
  }
  if (bits > 0) text += kAlphabet[held << (6 - bits) & 63];
  return text;
}

std::optional<std::string> FromBase64(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4 + 1);
  uint32_t held = 0;
  int bits = 0;
  for (const char c : text) {
    const size_t digit = kAlphabet.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    held = held << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> bits);
  }
  // No digit too many, and nothing in the bits that are left over.
  if (bits >= 6 || (held & ((1U << bits) - 1)) != 0) return std::nullopt;
  return bytes;
}

std::string Escape(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (IsPlain(c)) {
      text += c;
    } else {
      text += '%';
      text += kHex[static_cast<uint8_t>(c) >> 4];
      text += kHex[static_cast<uint8_t>(c) & 15];
    }
  }
  return text;
}

std::optional<std::string> Unescape(std::string_view text) {
  std::string name;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      if (!IsPlain(text[i])) return std::nullopt;
      name += text[i];
      continue;
    }
    if (text.size() - i < 3) return std::nullopt;
    const size_t high = kHex.find(text[i + 1]);
    const size_t low = kHex.find(text[i + 2]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    const char c = static_cast<char>(high << 4 | low);
    if (IsPlain(c)) return std::nullopt;
    name += c;
    i += 2;
  }
  return name;
}

}  // namespace weightcast::stream
