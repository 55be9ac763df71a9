#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "weightcast/status.h"
#include "weightcast/worker.h"
#include "wire/messages.h"

namespace weightcast::worker {

/// Refuses shards that make no sense, naming the tensor: a bad name, dtype, shape or box, strides of
/// another number of dimensions, no memory (if `in_memory`), a tensor given twice. Returns ShardKey → index.
Result<std::unordered_map<uint64_t, size_t>> CheckShards(std::span<const Shard> shards,
                                                         bool in_memory = true);

/// The memory of a dense shard.
std::span<std::byte> SpanOf(const Shard& shard);

/// What the controller is told of them.
std::vector<wire::ShardInfo> InfosOf(std::span<const Shard> shards);

}  // namespace weightcast::worker
