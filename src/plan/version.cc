#include "weightcast/version.h"

namespace weightcast {

std::string ToString(const Version& version) {
  if (version.number < 0) return "none";
  const std::string number = std::to_string(version.number);
  return version.run == 1 ? number : std::to_string(version.run) + ":" + number;
}

const char* LibraryVersion() { return "0.1.0"; }

}  // namespace weightcast
