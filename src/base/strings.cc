#include "base/strings.h"

#ifndef FMT_HEADER_ONLY  // Some test programs compile this file by itself.
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <iterator>

namespace weightcast {

void StrPart::AppendTo(std::string& out) const {
  const auto append = [&](auto value) {
    char digits[32];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  };
  switch (kind_) {
    case Kind::kText:
      out.append(text_, number_);
      break;
    case Kind::kCharacter:
      out += static_cast<char>(number_);
      break;
    case Kind::kSigned:
      append(static_cast<int64_t>(number_));
      break;
    case Kind::kUnsigned:
      append(number_);
      break;
    case Kind::kDouble:
      fmt::format_to(std::back_inserter(out), "{:.6g}", std::bit_cast<double>(number_));
      break;
  }
}

std::string Concatenate(std::initializer_list<StrPart> parts) {
  std::string out;
  for (const StrPart& part : parts) part.AppendTo(out);
  return out;
}

std::string JoinSome(std::span<const std::string> names, size_t most) {
  if (names.size() <= most) return Join(names, ", ");
  return StrCat(Join(names.first(most), ", "), " and ", names.size() - most, " more");
}

/// By fmt: the tables with which std::to_chars does so take 0.1 MB of each program.
std::string Decimal(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

std::string HumanBytes(double bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  return StrCat(Decimal(bytes, unit == 0 || bytes >= 100 ? 0 : (bytes >= 10 ? 1 : 2)), " ", kUnits[unit]);
}

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
    const unsigned lead = byte(i);
    if (lead < 0x80) continue;
    const size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i <= more) return false;
    const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (byte(i + 1) < low || byte(i + 1) > high) return false;
    for (size_t k = 2; k <= more; ++k)
      if (byte(i + k) < 0x80 || byte(i + k) > 0xbf) return false;
    i += more;
  }
  return true;
}

bool IsPrintable(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
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
