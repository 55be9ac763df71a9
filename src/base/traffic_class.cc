#include "base/traffic_class.h"

#include <cctype>
#include <string>

#include "base/strings.h"

namespace weightcast {
namespace {

constexpr uint8_t kExpedited = 46;
constexpr uint8_t kLowerEffort = 1;

/// 0 to 7 of '0' to '7'; nothing of others.
std::optional<uint8_t> Digit(char text, uint8_t least, uint8_t most) {
  const int value = text - '0';
  if (value < least || value > most) return std::nullopt;
  return static_cast<uint8_t>(value);
}

std::optional<uint8_t> DscpOf(std::string_view name) {
  if (name == "ef") return kExpedited;
  if (name == "le") return kLowerEffort;
  if (name.size() == 3 && name.starts_with("cs")) {
    const auto selector = Digit(name[2], 0, 7);
    if (selector) return static_cast<uint8_t>(*selector * 8);
  }
  if (name.size() == 4 && name.starts_with("af")) {
    const auto group = Digit(name[2], 1, 4);
    const auto precedence = Digit(name[3], 1, 3);
    if (group && precedence) return static_cast<uint8_t>(*group * 8 + *precedence * 2);
  }
  return std::nullopt;
}

}  // namespace

Result<std::optional<uint8_t>> ParseTrafficClass(std::string_view text) {
  if (text.empty()) return std::optional<uint8_t>();
  if (const auto number = ParseNumber<uint8_t>(text)) return std::optional(*number);
  std::string name(text);
  for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  if (const auto dscp = DscpOf(name)) return std::optional(static_cast<uint8_t>(*dscp << 2));
  return Error(Code::kInvalidArgument, "setting traffic_class is '", text, "'; allowed: ", kTrafficClasses);
}

}  // namespace weightcast
