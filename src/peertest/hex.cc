#include "peertest/hex.h"

#include <cstdint>

#include "base/strings.h"

namespace weightcast::peertest {

std::optional<std::string> FromHex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    const auto byte = ParseHex<uint8_t>(hex.substr(i, 2));
    if (!byte) return std::nullopt;
    bytes += static_cast<char>(*byte);
  }
  return bytes;
}

}  // namespace weightcast::peertest
