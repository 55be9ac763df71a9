#pragma once

#include <string>
#include <string_view>

#include "plan/rules.h"

namespace weightcast::plan {

/// The rules JSON (docs/layout.md).
std::string ToJson(const NameRules& rules);

/// Reads and checks one. Errors: kInvalidArgument, with the rule's number and the reason.
Result<NameRules> ParseRules(std::string_view json);

}  // namespace weightcast::plan
