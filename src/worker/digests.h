#pragma once

#include <span>

#include "weightcast/digest.h"
#include "weightcast/registration.h"
#include "weightcast/status.h"
#include "worker/device_memory.h"
#include "worker/waiting.h"

namespace weightcast::worker {

/// The digests of all shards that are not declared. `reader`: gives their bytes; null: their memory does.
/// What lies on one of `devices` is digested there, several shards at a time. kCancelled: interrupted, as
/// looked at after each shard, or after those several.
Result<Digests> DigestsOf(std::span<const Shard> shards, ShardReader* reader, DeviceMemories& devices,
                          const Interrupted& interrupted);

}  // namespace weightcast::worker
