// Decoding a routing table: hostile bytes as they are, and behind a checksum that fits them, and as
// the pieces of one.

#include <cstdlib>
#include <string>

#include "base/bytes.h"
#include "base/hash.h"
#include "plan/segments.h"
#include "plan/table_format.h"
#include "plan/table_layout.h"

namespace weightcast::plan {
namespace {

/// Whatever is accepted must be usable without a second look.
void Use(const RankTable& table) {
  for (const RankTable::Route& route : table.routes) {
    const RankTable::Shard& source = table.source_shards.at(route.src_shard);
    const RankTable::Shard& destination = table.destination_shards.at(route.dst_shard);
    const auto segments = Segments::Of(
        source.box, table.source_tensors.at(static_cast<size_t>(source.tensor)).dtype, destination.box,
        table.destination_tensors.at(static_cast<size_t>(destination.tensor)).dtype, route.src_box,
        route.dst_offset);
    // Only a dtype below one byte may still object.
    if (!segments.ok() && segments.status().code() != Code::kInvalidArgument) std::abort();
    if (segments.ok() && segments->count() > 0 && segments->At(segments->count() - 1).src_bytes < 0)
      std::abort();
  }
}

std::string WithHeader(std::string_view body) {
  ByteWriter out;
  out.PutRaw(kTableMagic);
  out.Put(kTableFormatVersion);
  out.Put(Hash64(body));
  out.PutRaw(body);
  return out.Take();
}

}  // namespace
}  // namespace weightcast::plan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightcast::plan;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (const auto table = DecodeRankTable(bytes); table.ok()) Use(*table);
  if (const auto table = DecodeRankTable(WithHeader(bytes)); table.ok()) Use(*table);
  (void)JoinPieces(std::vector<std::string>{bytes}, size_t{1} << 20);
  return 0;
}
