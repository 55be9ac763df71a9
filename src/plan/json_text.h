#pragma once

#include <cstddef>
#include <string_view>

#include "weightcast/status.h"

namespace weightcast::plan {

/// Longer JSON is refused: reading it takes some twenty times its size in memory, and at most 48 times.
inline constexpr size_t kMaxJsonBytes = size_t{256} << 20;

/// Refuses text that is too long, needs more memory than there is, or is nested more deeply than `max_depth`,
/// before a parser spends memory on it. `what` names the document in the message, `shorter` says how to write
/// less: "use patterns".
Status CheckJsonText(std::string_view what, std::string_view text, int max_depth, std::string_view shorter);

}  // namespace weightcast::plan
