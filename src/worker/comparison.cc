#include "worker/comparison.h"

#include <algorithm>
#include <utility>

namespace weightcast::worker {

Result<std::unique_ptr<PairDigests>> PairDigests::Make(const plan::RankTable& table, const Batches& batches,
                                                       const TransferRange& transfers) {
  std::unique_ptr<PairDigests> made(new PairDigests(table, batches, transfers));
  for (const Item& item : batches.Of(transfers)) {
    const uint32_t shard = table.routes[item.route].dst_shard;
    const int tensor = table.destination_shards[shard].tensor;
    if (!made->place_of_.try_emplace(tensor, made->keys_.size()).second) continue;
    WC_ASSIGN_OR_RETURN(auto key, digest::TensorKey::Of(table.DestinationTensor(shard)));
    made->keys_.push_back(std::move(key));
  }
  made->sums_.resize(made->keys_.size());
  return made;
}

bool PairDigests::Equal(const plan::RankTable& table, const Batches& a, const TransferRange& of_a,
                        const Batches& b, const TransferRange& of_b) {
  const auto same = [&](const Item& x, const Item& y) {
    const auto& to_x = table.routes[x.route];
    const auto& to_y = table.routes[y.route];
    const auto& shard_x = table.destination_shards[to_x.dst_shard];
    const auto& shard_y = table.destination_shards[to_y.dst_shard];
    return x.first == y.first && x.count == y.count && to_x.src_shard == to_y.src_shard &&
           to_x.src_box == to_y.src_box && to_x.dst_offset == to_y.dst_offset &&
           to_x.transform == to_y.transform && shard_x.tensor == shard_y.tensor && shard_x.box == shard_y.box;
  };
  if (of_a.count() != of_b.count()) return false;
  for (uint32_t i = 0; i < of_a.count(); ++i)
    if (!std::ranges::equal(a.Of(of_a.first + i), b.Of(of_b.first + i), same)) return false;
  return true;
}

Status PairDigests::Add(uint32_t transfer, DeviceMemories& devices, const Locate& locate) {
  std::call_once(added_[transfer], [&] {
    const Status status = AddNow(batches_.Of(first_ + transfer), devices, locate);
    const std::lock_guard lock(mutex_);
    if (error_.ok()) error_ = status;
  });
  const std::lock_guard lock(mutex_);
  return error_;
}

size_t PairDigests::PlaceOf(const Item& item) const {
  return place_of_.at(table_.destination_shards[table_.routes[item.route].dst_shard].tensor);
}

Status PairDigests::AddNow(std::span<const Item> items, DeviceMemories& devices, const Locate& locate) {
  std::vector<std::pair<size_t, TensorDigest>> found;
  std::vector<DevicePart> parts;
  std::vector<size_t> places;  // As `parts`.
  for (const Item& item : items) {
    const ItemBytes bytes = locate(item);
    if (bytes.device != kHostMemory) {
      parts.push_back(PartOf(item, bytes));
      places.push_back(PlaceOf(item));
      continue;
    }
    WC_ASSIGN_OR_RETURN(const TensorDigest digest, DigestOf(item, bytes));
    found.emplace_back(PlaceOf(item), digest);
  }
  WC_ASSIGN_OR_RETURN(const auto on_devices, DigestsOnDevices(devices, parts));
  for (size_t i = 0; i < places.size(); ++i) found.emplace_back(places[i], on_devices[i]);
  const std::lock_guard lock(mutex_);
  for (const auto& [place, digest] : found) sums_[place] += digest;
  return Status::Ok();
}

/// Of host memory.
Result<TensorDigest> PairDigests::DigestOf(const Item& item, const ItemBytes& bytes) const {
  const auto& route = table_.routes[item.route];
  const auto& shard = table_.destination_shards[route.dst_shard];
  WC_ASSIGN_OR_RETURN(const RouteSegments segments, SegmentsOf(table_, route));
  digest::DigestSum sum(keys_[PlaceOf(item)]);
  Status status;
  int64_t alone = 0;
  ForEachSegment(segments, item, [&](const ItemSegment& segment) {
    const int64_t at = bytes.in == ItemBytes::In::kSource        ? segment.src_offset
                       : bytes.in == ItemBytes::In::kDestination ? segment.dst_offset
                                                                 : alone;
    alone += segment.dst_bytes;
    if (status.ok())
      status = sum.AddPiece(shard.box, segment.dst_offset,
                            {bytes.data + at, static_cast<size_t>(segment.dst_bytes)});
  });
  WC_RETURN_IF_ERROR(status);
  return sum.digest();
}

DevicePart PairDigests::PartOf(const Item& item, const ItemBytes& bytes) const {
  const auto& route = table_.routes[item.route];
  const digest::TensorKey& key = keys_[PlaceOf(item)];
  const DType dtype = key.tensor().dtype;
  GatherSource memory{.data = bytes.data, .dtype = dtype, .shard = {}, .strides = {}, .box = route.src_box};
  if (bytes.in == ItemBytes::In::kSource) {
    memory.shard = table_.source_shards[route.src_shard].box;
  } else {
    memory.box.offset = route.dst_offset;
    memory.shard = table_.destination_shards[route.dst_shard].box;
  }
  if (bytes.in == ItemBytes::In::kAlone) {
    memory.shard = memory.box;
    memory.data -= item.first * BitsOf(dtype) / 8;
  }
  memory.strides = DenseStrides(memory.shard.size);
  return {
      .device = bytes.device,
      .key = &key,
      .source = {
          .memory = std::move(memory), .place = route.dst_offset, .first = item.first, .count = item.count}};
}

std::vector<TensorDigest> PairDigests::Sums() const {
  const std::lock_guard lock(mutex_);
  return sums_;
}

std::vector<std::string> PairDigests::Differing(std::span<const TensorDigest> others) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (size_t i = 0; i < sums_.size(); ++i)
    if (sums_[i] != others[i]) names.push_back(keys_[i].tensor().name);
  return names;
}

}  // namespace weightcast::worker
