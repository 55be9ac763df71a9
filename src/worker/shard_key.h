#pragma once

#include <cstdint>
#include <string_view>

#include "weightcast/tensor.h"

namespace weightcast::worker {

/// Names a shard in a LandingMap: the same on every host, unique among the shards of one rank (the rank
/// that registers checks that). Never 0.
uint64_t ShardKey(std::string_view tensor, const Box& box);

}  // namespace weightcast::worker
