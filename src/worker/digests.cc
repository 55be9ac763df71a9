#include "worker/digests.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "digest/digest.h"
#include "worker/shards.h"

namespace weightcast::worker {
namespace {

constexpr int64_t kReadBytes = int64_t{4} << 20;

Status AddFromReader(digest::DigestSum& sum, const Shard& shard, size_t index, ShardReader& reader) {
  const int64_t bytes = BytesOf(shard.tensor.dtype, ElementsOf(BoxOf(shard).size));
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(bytes, kReadBytes)));
  for (int64_t done = 0; done < bytes; done += kReadBytes) {
    const auto piece = std::span(buffer).first(static_cast<size_t>(std::min(bytes - done, kReadBytes)));
    WC_RETURN_IF_ERROR(reader.Read(index, static_cast<uint64_t>(done), piece));
    WC_RETURN_IF_ERROR(sum.AddPiece(BoxOf(shard), done, piece));
  }
  return Status::Ok();
}

Status AddFromDevice(digest::DigestSum& sum, const Shard& shard, DeviceMemories& devices) {
  const Box& box = BoxOf(shard);
  const auto strides = shard.strides.empty() ? DenseStrides(box.size) : shard.strides;
  const GatherSource source{
      .data = DataOf(shard), .dtype = shard.tensor.dtype, .shard = box, .strides = strides, .box = box};
  HostCopy copy;
  WC_RETURN_IF_ERROR(copy.Fill(devices, shard.memory.device, source, 0, ElementsOf(box.size)));
  return sum.AddBox(box, copy.data(), shard.strides);
}

Status AddShard(digest::DigestSum& sum, const Shard& shard, size_t index, ShardReader* reader,
                DeviceMemories& devices) {
  if (reader != nullptr) return AddFromReader(sum, shard, index, *reader);
  if (IsOnDevice(shard)) return AddFromDevice(sum, shard, devices);
  return sum.AddBox(BoxOf(shard), DataOf(shard), shard.strides);
}

}  // namespace

Result<Digests> DigestsOf(std::span<const Shard> shards, ShardReader* reader, DeviceMemories& devices,
                          const Interrupted& interrupted) {
  Digests digests;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Shard& shard = shards[i];
    if (shard.declared) continue;
    WC_ASSIGN_OR_RETURN(const auto key, digest::TensorKey::Of(shard.tensor));
    digest::DigestSum sum(key);
    WC_RETURN_IF_ERROR(AddShard(sum, shard, i, reader, devices));
    digests.push_back({.tensor = shard.tensor, .box = BoxOf(shard), .digest = sum.digest()});
    if (interrupted && interrupted()) return Status(Code::kCancelled, "interrupted");
  }
  if (reader != nullptr) WC_RETURN_IF_ERROR(reader->Check());
  return digests;
}

}  // namespace weightcast::worker
