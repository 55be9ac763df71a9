#include "base/strings.h"

#include <array>
#include <system_error>

namespace weightcast {

std::string HumanBytes(double bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  char buffer[32];
  const int precision = unit == 0 || bytes >= 100 ? 0 : (bytes >= 10 ? 1 : 2);
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, bytes, std::chars_format::fixed, precision).ptr;
  return StrCat(std::string_view(buffer, end), " ", kUnits[unit]);
}

std::string ToHex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    out += kDigits[static_cast<unsigned char>(byte) >> 4];
    out += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return out;
}

std::string ErrnoText(int error) { return StrCat(std::generic_category().message(error), " (", error, ")"); }

}  // namespace weightcast
