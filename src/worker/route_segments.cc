#include "worker/route_segments.h"

#include "base/strings.h"

namespace weightcast::worker {

Result<RouteSegments> SegmentsOf(const plan::RankTable& table, const plan::RankTable::Route& route) {
  const auto& source = table.source_shards[route.src_shard];
  const auto& destination = table.destination_shards[route.dst_shard];
  const DType src_dtype = table.SourceTensor(route.src_shard).dtype;
  const DType dst_dtype = table.DestinationTensor(route.dst_shard).dtype;
  const auto segments =
      plan::Segments::Of(source.box, src_dtype, destination.box, dst_dtype, route.src_box, route.dst_offset);
  if (!segments.ok())
    return Error(segments.status().code(), "tensor '", table.SourceTensor(route.src_shard).name,
                 "': ", segments.status().message());
  return RouteSegments{.segments = *segments,
                       .elements = plan::ElementsOf(route.src_box),
                       .src_bits = BitsOf(src_dtype),
                       .dst_bits = BitsOf(dst_dtype)};
}

}  // namespace weightcast::worker
