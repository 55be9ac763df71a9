#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weightcast::tools {

/// Builds one line of JSON, member by member, in the order of the calls.
///   json.BeginObject().Key("bytes").Number(12).Key("names").BeginArray().String("a").EndArray().EndObject()
class Json {
 public:
  Json& BeginObject() { return Open('{'); }
  Json& EndObject() { return Close('}'); }
  Json& BeginArray() { return Open('['); }
  Json& EndArray() { return Close(']'); }
  Json& Key(std::string_view name);
  /// Bytes that are not UTF-8 become U+FFFD.
  Json& String(std::string_view value);
  Json& Number(int64_t value);
  Json& Number(uint64_t value);
  Json& Number(int value) { return Number(static_cast<int64_t>(value)); }
  Json& Number(unsigned value) { return Number(static_cast<uint64_t>(value)); }
  /// What is not finite becomes null.
  Json& Number(double value);
  Json& Bool(bool value);
  Json& Null();
  /// The text so far, and a line break.
  [[nodiscard]] std::string Line() const { return text_ + '\n'; }

 private:
  Json& Open(char bracket);
  Json& Close(char bracket);
  Json& Raw(std::string_view text);

  std::string text_;
  bool comma_ = false;  ///< Something stands before the next value on its level.
};

}  // namespace weightcast::tools
