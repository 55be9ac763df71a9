#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/segments.h"
#include "plan/table_format.h"
#include "weightcast/status.h"
#include "worker/batches.h"

namespace weightcast::worker {

/// A contiguous part of an item: where it is read at the source's shard (as if that were dense, in the
/// source's dtype), where it lands, and how long it is there. Bytes.
struct ItemSegment {
  int64_t src_offset = 0;
  int64_t dst_offset = 0;
  int64_t dst_bytes = 0;
};

/// A route with its segments, ready to be expanded. They depend on nothing but the table: a source that is
/// staged gives the same as one that is not, so that both sides cut chunks alike.
struct RouteSegments {
  plan::Segments segments;
  int64_t elements = 0;  ///< Of the whole route.
  int src_bits = 0;      ///< Of one element.
  int dst_bits = 0;
};
Result<RouteSegments> SegmentsOf(const plan::RankTable& table, const plan::RankTable::Route& route);

/// Calls fn(const ItemSegment&) for the segments of `item`, a part of the route, in the order of its
/// elements; the first and the last may be parts of the route's.
template <typename Fn>
void ForEachSegment(const RouteSegments& route, const Item& item, Fn&& fn) {
  if (item.count == 0 || route.elements == 0) return;
  const int64_t per_segment = route.elements / route.segments.count();
  const int64_t end = item.first + item.count;
  int64_t number = item.first / per_segment;
  route.segments.ForEach(number, (end + per_segment - 1) / per_segment, [&](const plan::Segment& segment) {
    const int64_t from = std::max(item.first - number * per_segment, int64_t{0});
    const int64_t to = std::min(end - number * per_segment, per_segment);
    // Cuts fall on whole bytes; only the end of a whole shard may lie inside one, which is then its own.
    const int64_t dst_from = from * route.dst_bits / 8;
    fn(ItemSegment{.src_offset = segment.src_offset + from * route.src_bits / 8,
                   .dst_offset = segment.dst_offset + dst_from,
                   .dst_bytes = (to * route.dst_bits + 7) / 8 - dst_from});
    ++number;
  });
}

}  // namespace weightcast::worker
