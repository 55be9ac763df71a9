#pragma once

#include <cstdint>

#include "protocol/types.h"
#include "weightcast/status.h"

/// How controllers count their terms (docs/protocol.md, "Terms"): pure functions.
namespace weightcast::control {

/// Of a controller that has just started and knows of no other.
inline protocol::Term FirstTerm(uint64_t id) { return {.number = 1, .id = id}; }

/// The number of the term that a controller in term `own` goes on with when a worker says that it has
/// followed `told`: its own, or one above both. kInvalidArgument: `told` is too far above `own`.
Result<uint64_t> NumberAfter(const protocol::Term& own, const protocol::Term& told);

}  // namespace weightcast::control
