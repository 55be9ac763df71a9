#include "tools/json.h"

#include <charconv>
#include <cmath>

namespace weightcast::tools {
namespace {

/// Length of the UTF-8 sequence at the front; 0 where it is none.
size_t SequenceLength(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF5 ? 0 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((at(i) & 0xC0) != 0x80) return 0;
  // Overlong forms, surrogates and what lies beyond U+10FFFF.
  if ((first == 0xE0 && at(1) < 0xA0) || (first == 0xED && at(1) > 0x9F)) return 0;
  if ((first == 0xF0 && at(1) < 0x90) || (first == 0xF4 && at(1) > 0x8F)) return 0;
  return length;
}

void AppendEscaped(std::string& out, unsigned char character) {
  static constexpr char kHex[] = "0123456789abcdef";
  switch (character) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  if (character >= 0x20 && character != 0x7F) {
    out += static_cast<char>(character);
    return;
  }
  out += "\\u00";
  out += kHex[character >> 4];
  out += kHex[character & 15];
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 1)
      AppendEscaped(out, static_cast<unsigned char>(text.front()));
    else
      out += length == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + '"';
}

template <typename T>
std::string Digits(T value) {
  char buffer[64];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

}  // namespace

Json& Json::Raw(std::string_view text) {
  if (comma_) text_ += ',';
  text_ += text;
  comma_ = true;
  return *this;
}

Json& Json::Open(char bracket) {
  Raw(std::string_view(&bracket, 1));
  comma_ = false;
  return *this;
}

Json& Json::Close(char bracket) {
  text_ += bracket;
  comma_ = true;
  return *this;
}

Json& Json::Key(std::string_view name) {
  Raw(Quoted(name));
  text_ += ':';
  comma_ = false;
  return *this;
}

Json& Json::String(std::string_view value) { return Raw(Quoted(value)); }
Json& Json::Number(int64_t value) { return Raw(Digits(value)); }
Json& Json::Number(uint64_t value) { return Raw(Digits(value)); }
Json& Json::Number(double value) { return std::isfinite(value) ? Raw(Digits(value)) : Null(); }
Json& Json::Bool(bool value) { return Raw(value ? "true" : "false"); }
Json& Json::Null() { return Raw("null"); }

}  // namespace weightcast::tools
