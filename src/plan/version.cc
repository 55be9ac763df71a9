#include "weightcast/version.h"

namespace weightcast {

std::optional<bool> Newer(const Version& a, const Version& b) {
  if (a.number < 0 || b.number < 0) return b.number < 0 && a.number >= 0;
  if (a.origin != b.origin && a.origin != 0 && b.origin != 0) return std::nullopt;
  return a.run != b.run ? a.run > b.run : a.number > b.number;
}

std::string ToString(const Version& version) {
  if (version.number < 0) return "none";
  const std::string number = std::to_string(version.number);
  return version.run == 1 ? number : std::to_string(version.run) + ":" + number;
}

const char* LibraryVersion() { return "0.1.0"; }

}  // namespace weightcast
