#include "tools/doctor/verdict.h"

#include <algorithm>

#include "base/strings.h"

namespace weightcast::tools {

Status VerdictOf(const std::vector<doctor::Finding>& findings) {
  const auto count = std::ranges::count(findings, doctor::Level::kFail, &doctor::Finding::level);
  if (count == 0) return Status::Ok();
  return Error(Code::kUnavailable, count, count == 1 ? " check is" : " checks are",
               " FAIL; do what the report above says of each");
}

}  // namespace weightcast::tools
