#include "worker/pieces.h"

namespace weightcast::worker {

Result<RoutePieces> PiecesOf(const plan::RankTable& table, const plan::RankTable::Route& route) {
  const auto& source = table.source_shards[route.src_shard];
  const auto& destination = table.destination_shards[route.dst_shard];
  const DType src_dtype = table.SourceTensor(route.src_shard).dtype;
  const DType dst_dtype = table.DestinationTensor(route.dst_shard).dtype;
  WC_ASSIGN_OR_RETURN(
      plan::Segments segments,
      plan::Segments::Of(source.box, src_dtype, destination.box, dst_dtype, route.src_box, route.dst_offset));
  return RoutePieces{.segments = segments,
                     .elements = plan::ElementsOf(route.src_box),
                     .src_bits = BitsOf(src_dtype),
                     .dst_bits = BitsOf(dst_dtype)};
}

}  // namespace weightcast::worker
