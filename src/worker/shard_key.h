#pragma once

#include <cstdint>
#include <string_view>

#include "weightcast/tensor.h"

namespace weightcast::worker {

/// Names a shard in a LandingMap: the same on every host, unique among the shards of one rank (the rank
/// that registers checks that). `copy`: how many shards of the same tensor and box the rank has registered
/// before this one. Never 0.
uint64_t ShardKey(std::string_view tensor, const Box& box, uint32_t copy = 0);

}  // namespace weightcast::worker
