#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weightcast/registration.h"
#include "weightcast/status.h"

namespace weightcast::worker {

/// The shards of a registration; the part of each is a Box, Placed ones have got theirs. Errors:
/// kInvalidArgument, naming the tensor or the mesh.
Result<std::vector<Shard>> ResolveShards(Registration registration);

/// Refuses name patterns that could never work, naming the option `what`.
Status CheckPatterns(const std::vector<std::string>& patterns, std::string_view what);
/// Declares the shards whose names match as not sent. Errors: as CheckPatterns; a pattern that matches none.
Status DeclareNotSent(const std::vector<std::string>& patterns, std::vector<Shard>& shards);

}  // namespace weightcast::worker
