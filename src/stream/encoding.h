#pragma once

#include <optional>
#include <string>
#include <string_view>

/// Bytes and names as text that needs no quoting. Each has one form: what is decoded encodes to the same
/// text.
namespace weightcast::stream {

/// base64url without padding (RFC 4648, section 5).
std::string ToBase64(std::string_view bytes);
std::optional<std::string> FromBase64(std::string_view text);

/// Letters, digits and "-._" as they are, other bytes as %XX.
std::string Escape(std::string_view name);
std::optional<std::string> Unescape(std::string_view text);

}  // namespace weightcast::stream
