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
struct Run {
  int64_t src_offset = 0;
  int64_t dst_offset = 0;
  int64_t dst_bytes = 0;
};

/// A route with its runs, ready to be expanded. Runs depend on nothing but the table: a source that is staged
/// gives the same as one that is not, so that both sides cut chunks alike.
struct RoutePieces {
  plan::Segments segments;
  int64_t elements = 0;  ///< Of the whole route.
  int src_bits = 0;      ///< Of one element.
  int dst_bits = 0;
};
Result<RoutePieces> PiecesOf(const plan::RankTable& table, const plan::RankTable::Route& route);

/// Calls fn(const Run&) for the runs of `item`, a part of the route, in the order of its elements; the first
/// and the last may be parts of the route's.
template <typename Fn>
void ForEachRun(const RoutePieces& route, const Item& item, Fn&& fn) {
  if (item.count == 0 || route.elements == 0) return;
  const int64_t per_run = route.elements / route.segments.count();
  const int64_t end = item.first + item.count;
  int64_t run = item.first / per_run;
  route.segments.ForEach(run, (end + per_run - 1) / per_run, [&](const plan::Segment& segment) {
    const int64_t from = std::max(item.first - run * per_run, int64_t{0});
    const int64_t to = std::min(end - run * per_run, per_run);
    // Cuts fall on whole bytes; only the end of a whole shard may lie inside one, which is then its own.
    const int64_t dst_from = from * route.dst_bits / 8;
    fn(Run{.src_offset = segment.src_offset + from * route.src_bits / 8,
           .dst_offset = segment.dst_offset + dst_from,
           .dst_bytes = (to * route.dst_bits + 7) / 8 - dst_from});
    ++run;
  });
}

}  // namespace weightcast::worker
