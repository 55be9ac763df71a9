#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/strings.h"
#include "base/varint.h"
#include "plan/links.h"
#include "plan/quantise.h"
#include "plan/table_format.h"
#include "plan/table_layout.h"

namespace weightcast::plan {
namespace {

/// Who reads the table says how to get another.
Status Corrupt(std::string_view reason) {
  return Error(Code::kCorrupt, "the routing table is damaged: ", reason);
}

bool IsStripOfBlocks(const RankTable::Route& route, const Shape& shape) {
  return shape.size() == 2 && HasWholeBlocks(route.src_box, shape) &&
         route.src_box.size[1] <= kMaxQuantisedColumns;
}

/// Reads the body; whatever it accepts is consistent.
class Decoder {
 public:
  explicit Decoder(std::string_view body) : in_(body) {}

  Result<RankTable> Run();

 private:
  Status ReadHead();
  Status ReadTensors(std::vector<TensorInfo>& out);
  Status ReadPeers();
  /// `ranks` is how many ranks the side has; `own` whether it is this worker's side.
  Status ReadShards(const std::vector<TensorInfo>& tensors, int ranks, bool own,
                    std::vector<RankTable::Shard>& out);
  Status ReadRoutes();
  Status ReadCopies();
  Status ReadRoute(uint32_t index, RankTable::Route& route);
  Status ReadBoxes(uint64_t flags, const Box& source, const Box& destination, RankTable::Route& route);
  /// A number below `end`.
  uint64_t GetBelow(uint64_t end) {
    if (end > 0) return in_.Get(end - 1);
    bad_index_ = true;
    return 0;
  }
  [[nodiscard]] bool Sound() const { return in_.ok() && !bad_index_; }

  VarintReader in_;
  bool bad_index_ = false;
  RankTable table_;
};

Status Decoder::ReadHead() {
  table_.role = in_.Get(1) == 0 ? RankTable::Role::kTrainer : RankTable::Role::kInference;
  table_.rank = static_cast<int>(in_.Get(kMaxRanks));
  table_.source_ranks = static_cast<int>(in_.Get(kMaxRanks));
  table_.destination_ranks = static_cast<int>(in_.Get(kMaxRanks));
  table_.epoch = static_cast<uint32_t>(in_.Get(UINT32_MAX));
  const int own = table_.role == RankTable::Role::kTrainer ? table_.source_ranks : table_.destination_ranks;
  if (!Sound() || table_.rank >= own) return Corrupt("its header has ranks that the plan cannot have");
  return Status::Ok();
}

Status Decoder::ReadTensors(std::vector<TensorInfo>& out) {
  const uint64_t count = in_.GetCount(kMaxTensors);
  for (uint64_t i = 0; i < count; ++i) {
    TensorInfo info;
    info.name = in_.GetText(kMaxNameBytes);
    const auto dtype = DTypeFromName(in_.GetText(16));
    if (!dtype) return Corrupt("a tensor has an unknown dtype");
    info.dtype = *dtype;
    info.shape.resize(in_.GetCount(kMaxDims));
    for (int64_t& size : info.shape) size = static_cast<int64_t>(in_.Get(kMaxTensorBytes));
    if (!Sound() || !CheckTensor(info).ok())
      return Corrupt("a tensor has a name or shape that is not allowed");
    out.push_back(std::move(info));
  }
  return Sound() ? Status::Ok() : Corrupt("its list of tensors is cut off");
}

Status Decoder::ReadPeers() {
  const bool sends = table_.role == RankTable::Role::kTrainer;
  const int ranks = sends ? table_.destination_ranks : table_.source_ranks;
  const uint64_t count = in_.GetCount(kMaxRanks);
  int64_t last = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const auto step = static_cast<int64_t>(in_.Get(kMaxRanks));
    last += step;
    if (!Sound() || last >= ranks || (i > 0 && step == 0))
      return Corrupt("its list of peers is out of order");
    table_.peers.push_back(static_cast<int>(last));
  }
  return Sound() ? Status::Ok() : Corrupt("its list of peers is cut off");
}

Status Decoder::ReadShards(const std::vector<TensorInfo>& tensors, int ranks, bool own,
                           std::vector<RankTable::Shard>& out) {
  const uint64_t count = in_.GetCount(kMaxRoutesOfRank);
  for (uint64_t i = 0; i < count; ++i) {
    RankTable::Shard shard;
    shard.rank = static_cast<int>(GetBelow(static_cast<uint64_t>(ranks)));
    shard.tensor = static_cast<int>(GetBelow(tensors.size()));
    if (!Sound()) return Corrupt("a shard is of a rank or tensor that is not in the table");
    if (own ? shard.rank != table_.rank : !std::ranges::binary_search(table_.peers, shard.rank))
      return Corrupt("a shard is of a rank that neither sends nor receives by the table");
    const TensorInfo& info = tensors[static_cast<size_t>(shard.tensor)];
    shard.box.offset.resize(info.shape.size());
    shard.box.size.resize(info.shape.size());
    for (int64_t& offset : shard.box.offset) offset = static_cast<int64_t>(in_.Get(kMaxTensorBytes));
    for (int64_t& size : shard.box.size) size = static_cast<int64_t>(in_.Get(kMaxTensorBytes));
    if (!Sound() || !CheckBox(shard.box, info).ok() || ElementsOf(shard.box) == 0)
      return Corrupt("a shard lies outside its tensor");
    out.push_back(std::move(shard));
  }
  return Sound() ? Status::Ok() : Corrupt("its list of shards is cut off");
}

Status Decoder::ReadBoxes(uint64_t flags, const Box& source, const Box& destination,
                          RankTable::Route& route) {
  const size_t dims = source.offset.size();
  if (destination.offset.size() != dims) return Corrupt("a route joins tensors of different dimensions");
  route.src_box = source;
  route.dst_offset = destination.offset;
  const auto get = [&](int64_t limit) { return static_cast<int64_t>(in_.Get(static_cast<uint64_t>(limit))); };
  for (size_t d = 0; (flags & kRouteIsWholeSource) == 0 && d < dims; ++d) {
    const int64_t begin = get(source.size[d]);
    route.src_box.offset[d] += begin;
    route.src_box.size[d] = get(source.size[d] - begin);
  }
  for (size_t d = 0; (flags & kRouteAtOrigin) == 0 && d < dims; ++d)
    route.dst_offset[d] += get(destination.size[d]);
  if (!Sound() || ElementsOf(route.src_box) == 0) return Corrupt("a route has a box outside its tensor");
  if (!Contains(destination, {route.dst_offset, route.src_box.size}))
    return Corrupt("a route leaves its destination shard");
  return Status::Ok();
}

Status Decoder::ReadRoute(uint32_t index, RankTable::Route& route) {
  const bool sends = table_.role == RankTable::Role::kTrainer;
  route.src_shard = static_cast<uint32_t>(GetBelow(table_.source_shards.size()));
  route.dst_shard = static_cast<uint32_t>(GetBelow(table_.destination_shards.size()));
  route.slot = sends ? static_cast<uint32_t>(in_.Get(UINT32_MAX)) : index;
  const uint64_t flags = in_.Get(kRouteFlags);
  if (!Sound()) return Corrupt("a route is of a shard that is not in the table");
  const RankTable::Shard& source = table_.source_shards[route.src_shard];
  const RankTable::Shard& destination = table_.destination_shards[route.dst_shard];
  route.peer = sends ? destination.rank : source.rank;
  route.transform = (flags & kRouteCasts) != 0       ? Transform::kCast
                    : (flags & kRouteQuantises) != 0 ? Transform::kQuantise
                                                     : Transform::kNone;
  const TensorInfo& from = table_.SourceTensor(route.src_shard);
  const Result<Transform> transform = TransformBetween(from, table_.DestinationTensor(route.dst_shard));
  if (!transform.ok() || *transform != route.transform)
    return Corrupt("a route has a transform that its dtypes do not allow");
  WC_RETURN_IF_ERROR(ReadBoxes(flags, source.box, destination.box, route));
  if (route.transform == Transform::kQuantise && !IsStripOfBlocks(route, from.shape))
    return Corrupt("a route quantises parts of blocks");
  return Status::Ok();
}

Status Decoder::ReadRoutes() {
  const uint64_t count = in_.GetCount(kMaxRoutesOfRank);
  table_.routes.reserve(std::min<uint64_t>(count, 1 << 16));  // Beyond that only as they really come.
  std::set<int> named;
  for (uint64_t i = 0; i < count; ++i) {
    RankTable::Route route;
    WC_RETURN_IF_ERROR(ReadRoute(static_cast<uint32_t>(i), route));
    if (table_.routes.empty() || table_.routes.back().peer != route.peer) named.insert(route.peer);
    table_.routes.push_back(std::move(route));
  }
  if (!in_.ok()) return Corrupt("it is cut off");
  if (!std::ranges::equal(named, table_.peers)) return Corrupt("its peers are not those of its routes");
  return Status::Ok();
}

Status Decoder::ReadCopies() {
  if (in_.AtEnd()) return Status::Ok();
  const uint64_t count = in_.GetCount(table_.destination_shards.size());
  uint64_t shard = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t step = in_.Get(kMaxRoutesOfRank);
    shard += step;
    const uint64_t copy = in_.Get(kMaxCopies - 1);
    if (!Sound() || shard >= table_.destination_shards.size() || (i > 0 && step == 0) || copy == 0)
      return Corrupt("its list of copies is out of order");
    table_.destination_shards[shard].copy = static_cast<uint32_t>(copy);
  }
  return in_.AtEnd() && count > 0 ? Status::Ok() : Corrupt("it is cut off, or bytes follow it");
}

Result<RankTable> Decoder::Run() {
  WC_RETURN_IF_ERROR(ReadHead());
  const bool sends = table_.role == RankTable::Role::kTrainer;
  WC_RETURN_IF_ERROR(ReadTensors(table_.source_tensors));
  WC_RETURN_IF_ERROR(ReadTensors(table_.destination_tensors));
  WC_RETURN_IF_ERROR(ReadPeers());
  WC_RETURN_IF_ERROR(ReadShards(table_.source_tensors, table_.source_ranks, sends, table_.source_shards));
  WC_RETURN_IF_ERROR(
      ReadShards(table_.destination_tensors, table_.destination_ranks, !sends, table_.destination_shards));
  WC_RETURN_IF_ERROR(ReadRoutes());
  WC_RETURN_IF_ERROR(ReadCopies());
  return std::move(table_);
}

}  // namespace

Result<RankTable> DecodeRankTable(std::string_view bytes) {
  if (bytes.size() > kMaxTableBytes) return Corrupt("it is larger than a table can be");
  if (bytes.size() < kTableHeaderBytes || bytes.substr(0, kTableMagic.size()) != kTableMagic)
    return Corrupt("its first bytes are wrong");
  ByteReader header(bytes.substr(kTableMagic.size()));
  const auto version = header.Get<uint32_t>();
  if (version != kTableFormatVersion) {
    return Error(Code::kProtocol, "the routing table has format version ", version,
                 ", and this weightcast reads ", kTableFormatVersion, "; run the same release everywhere");
  }
  if (header.Get<uint64_t>() != Hash64(header.rest()))
    return Corrupt("it has a wrong checksum, so it was cut off or changed after it was made");
  return Decoder(header.rest()).Run();
}

}  // namespace weightcast::plan
