#pragma once

#include <vector>

#include "doctor/finding.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// kUnavailable where something is FAIL: the exit code of `weightcast doctor`.
Status VerdictOf(const std::vector<doctor::Finding>& findings);

}  // namespace weightcast::tools
