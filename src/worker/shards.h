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
#include "worker/gather.h"

namespace weightcast::worker {

// Shards are those of ResolveShards: their parts are boxes.

inline const Box& BoxOf(const Shard& shard) { return std::get<Box>(shard.part); }
/// The address of the first element.
inline std::byte* DataOf(const Shard& shard) {
  return shard.memory.address == nullptr ? nullptr : shard.memory.address + shard.offset;
}

/// In elements, of a dense shard too.
std::vector<int64_t> StridesOf(const Shard& shard);
/// A box of the shard, where its bytes lie in the user's memory.
GatherSource SourceOf(const Shard& shard, Box box);

/// Names a shard in a LandingMap: the same on every host, unique among the shards of one rank (the rank
/// that registers checks that). `copy`: how many shards of the same tensor and box the rank has registered
/// before this one. Never 0.
uint64_t ShardKey(std::string_view tensor, const Box& box, uint32_t copy = 0);

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
