#pragma once

#include <span>

#include "weightcast/digest.h"
#include "weightcast/registration.h"
#include "weightcast/status.h"
#include "worker/waiting.h"

namespace weightcast::worker {

/// The digests of all shards that are not declared. `reader`: gives their bytes; null: their memory does.
/// kCancelled: interrupted, as looked at after each shard.
Result<Digests> DigestsOf(std::span<const Shard> shards, ShardReader* reader, const Interrupted& interrupted);

}  // namespace weightcast::worker
