#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json.h"

namespace weightcast::tools {

/// Members in the order of writing.
using Json = nlohmann::ordered_json;

/// Bytes that are not UTF-8 become U+FFFD, and numbers that are not finite null.
inline std::string JsonLine(const Json& json) { return JsonText(json) + '\n'; }

/// null for an empty text.
inline Json TextOrNull(std::string_view text) { return text.empty() ? Json() : Json(text); }

}  // namespace weightcast::tools
