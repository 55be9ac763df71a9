#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "protocol/messages.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"

namespace weightcast::worker {

// Shards are those of ResolveShards: their parts are boxes.

inline const Box& BoxOf(const Shard& shard) { return std::get<Box>(shard.part); }
/// The address of the first element.
inline std::byte* DataOf(const Shard& shard) {
  return shard.memory.address == nullptr ? nullptr : shard.memory.address + shard.offset;
}

enum class Needs : uint8_t { kMemory, kNoMemory };

/// Refuses shards that make no sense, naming the tensor: a bad name, dtype, shape or box, strides of another
/// number of dimensions, memory that does not hold the part (if needed, and not declared), and of one tensor
/// boxes that overlap without being equal, or shards of which only some are declared. Errors call the rank
/// `holder`. Returns ShardKey → index.
Result<std::unordered_map<uint64_t, size_t>> CheckShards(std::span<const Shard> shards,
                                                         Needs needs = Needs::kMemory,
                                                         std::string_view holder = "this rank");

/// The memory of a dense shard's elements. Of device memory they are addresses alone.
std::span<std::byte> SpanOf(const Shard& shard);
/// The same with its kind and device.
Memory MemoryOf(const Shard& shard);

/// What the controller is told of them.
std::vector<protocol::ShardInfo> InfosOf(std::span<const Shard> shards);

}  // namespace weightcast::worker
