#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/rules.h"
#include "weightcast/status.h"

namespace weightcast::plan {

using Side = NotSent::Side;

/// The values of the placeholders of `pattern` if `name` matches it (leftmost placeholders take as
/// little as they can).
std::optional<std::vector<std::string>> MatchName(std::string_view pattern, std::string_view name);
/// kInvalidArgument for one that is empty or too long, or has a brace that is not part of a placeholder.
Status CheckNamePattern(std::string_view pattern);
/// `pattern` with its placeholders replaced in order. There are as many captures as placeholders.
std::string ExpandName(std::string_view pattern, const std::vector<std::string>& captures);
/// Where the rule puts the FP8 values.
inline const std::string& ValuesOf(const Quantise& rule) { return rule.to.empty() ? rule.from : rule.to; }

}  // namespace weightcast::plan
