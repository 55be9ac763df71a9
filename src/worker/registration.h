#pragma once

#include <cstdint>
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

/// In how many parts an update comes, and with which of them each shard; all with one if `of_shard` is empty.
struct PartsOfShards {
  uint32_t count = 1;
  std::vector<uint32_t> of_shard;
};

/// Each group is a part of every update; shards that are not sent are in part 0. Errors:
/// kInvalidArgument; too many groups, one that matches nothing, a tensor that is in none or in two.
Result<PartsOfShards> PartsOf(const std::vector<std::vector<std::string>>& groups,
                              const std::vector<Shard>& shards);

}  // namespace weightcast::worker
