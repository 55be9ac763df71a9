#pragma once

#include <vector>

#include "weightcast/registration.h"
#include "weightcast/status.h"

namespace weightcast::worker {

/// The shards of a registration; the part of each is a Box, Placed ones have got theirs. Errors:
/// kInvalidArgument, naming the tensor or the mesh.
Result<std::vector<Shard>> ResolveShards(Registration registration);

}  // namespace weightcast::worker
