#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

/// Reading and printing JSON, compiled once: nlohmann's parser and serializer take seconds of each file that
/// has them.
namespace weightcast {

enum class JsonCharacters { kUtf8, kAscii };

/// The value in one line, or in lines indented by `indent` spaces unless that is -1. Bytes that are not UTF-8
/// become U+FFFD. kAscii: everything else than ASCII is escaped.
std::string JsonText(const nlohmann::json& value, int indent = -1,
                     JsonCharacters characters = JsonCharacters::kUtf8);
std::string JsonText(const nlohmann::ordered_json& value, int indent = -1);

/// The value, or one for which is_discarded() holds if `text` is not JSON. Does not throw.
nlohmann::json ParseJson(std::string_view text);

/// An array of what `make` makes of each element.
template <typename Json = nlohmann::ordered_json, typename Range, typename Make>
Json JsonArray(const Range& range, const Make& make) {
  Json array = Json::array();
  for (const auto& one : range) array.push_back(std::invoke(make, one));
  return array;
}

}  // namespace weightcast
