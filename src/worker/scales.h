#pragma once

#include <string_view>

#include "weightcast/rules.h"
#include "weightcast/status.h"
#include "worker/send_plan.h"

namespace weightcast::worker {

/// Adds shards for the scales of those that a quantise rule matches (docs/layout.md, "FP8"). Errors:
/// kInvalidArgument, naming the tensor: one that cannot be quantised, or whose box cuts blocks; scales with
/// the name of another tensor. They call the rank `holder`.
Status AddScales(const NameRules& rules, std::string_view holder, SourceMemory& memory);

}  // namespace weightcast::worker
