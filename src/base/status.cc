#include "weightcast/status.h"

#include <array>
#include <cstdio>
#include <cstdlib>

#include "base/strings.h"

namespace weightcast {

std::string_view CodeName(Code code) {
  static constexpr std::array<std::string_view, 13> kNames = {
      "ok",         "unavailable",   "peer dead",        "fenced",   "timed out", "cancelled", "exhausted",
      "permission", "out of bounds", "invalid argument", "protocol", "corrupt",   "internal"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return StrCat(CodeName(code_), ": ", message_);
}

void EndForMissingValue(const Status& reason) {
  std::fprintf(stderr, "weightcast: value() of a failed Result: %s\n", reason.ToString().c_str());
  std::abort();
}

}  // namespace weightcast
