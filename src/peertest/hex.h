#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace weightcast::peertest {

/// What ToHex (base/strings.h) has written; nullopt: something else.
std::optional<std::string> FromHex(std::string_view hex);

}  // namespace weightcast::peertest
