#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/layout.h"
#include "plan/route.h"
#include "plan/rules.h"

namespace weightcast::plan {

/// Applies the rules to both sides. The links of one destination tensor cover it exactly once.
/// Errors (kInvalidArgument): a tensor of the trainers without a partner, one of the inference side
/// that nothing feeds (the first ten are listed, with a count), shapes that do not match (both
/// shown), dtypes that cannot be cast into each other (both shown), two sources for one place, FP8 without a
/// rule, and what CheckBlocks and QuantisedBy refuse.
/// `unwanted`: name patterns of tensors, of the trainers or as the rules name them, that need no partner.
Result<std::vector<Link>> ResolveLinks(const NameRules& rules, const Layout& trainers,
                                       const Layout& inference, std::span<const std::string> unwanted = {});

/// Whether a name matches one of the patterns.
bool MatchesAny(std::span<const std::string> patterns, std::string_view name);

/// What becomes of an element on the way from one dtype to the other: kNone where they are equal,
/// kCast among F32, F16 and BF16, kQuantise from these to F8_E4M3, otherwise an error that shows both.
Result<Transform> TransformBetween(const TensorInfo& source, const TensorInfo& destination);

}  // namespace weightcast::plan
