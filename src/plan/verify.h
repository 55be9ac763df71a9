#pragma once

#include "plan/planner.h"
#include "plan/route.h"
#include "weightcast/status.h"

namespace weightcast::plan {

/// Checks a table against the request it was made for, sharing no code with the planner: every
/// element of every destination box (but of tensors not sent) arrives exactly once, from where the
/// name rules say, out of a box that its source rank holds; nothing else arrives; nothing is out of
/// bounds; dtypes are equal or cast as allowed. Errors: kInternal, naming the first offence.
Status Verify(const PlanRequest& request, const RoutingTable& table);

}  // namespace weightcast::plan
