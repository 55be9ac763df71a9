#pragma once

#include <cstddef>

#include "weightcast/status.h"
#include "weightcast/worker.h"
#include "worker/route_segments.h"

namespace weightcast::worker {

/// Reads the segments of an item, a part of a route from the reader's `shard` (its number there: `index`),
/// one after another to `target`, as elements of `to`.
Status ReadItem(ShardReader& reader, size_t index, const Shard& shard, const RouteSegments& segments,
                const Item& item, DType to, std::byte* target);

}  // namespace weightcast::worker
