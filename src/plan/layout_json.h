#pragma once

#include <string>
#include <string_view>

#include "plan/layout.h"

namespace weightcast::plan {

/// The layout JSON (docs/layout.md).
std::string ToJson(const Layout& layout);

/// Reads one, from a source that need not be trusted: memory stays within a small multiple of
/// the text. Errors: kInvalidArgument, with the place and the reason.
Result<Layout> ParseLayout(std::string_view json);

}  // namespace weightcast::plan
