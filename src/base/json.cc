#include "base/json.h"

#include <nlohmann/json.hpp>

namespace weightcast {

std::string JsonText(const nlohmann::json& value, int indent, JsonCharacters characters) {
  return value.dump(indent, ' ', characters == JsonCharacters::kAscii,
                    nlohmann::json::error_handler_t::replace);
}

std::string JsonText(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::json ParseJson(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace weightcast
