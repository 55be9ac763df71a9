#include "worker/digests.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/advice.h"
#include "digest/digest.h"
#include "worker/device_digest.h"
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

DevicePart WholeOf(const Shard& shard, const digest::TensorKey& key) {
  const Box& box = BoxOf(shard);
  return {.device = shard.memory.device,
          .key = &key,
          .source = {.memory = SourceOf(shard, box), .place = box.offset, .count = ElementsOf(box.size)}};
}

Status WasInterrupted(const Interrupted& interrupted) {
  return interrupted && interrupted() ? InterruptedCall("the computing of digests") : Status::Ok();
}

/// Of the shards in memory of devices: sets the digests, as many as shards.
Status DigestDevices(std::span<const Shard> shards, std::span<const digest::TensorKey> keys,
                     DeviceMemories& devices, const Interrupted& interrupted,
                     std::span<TensorDigest> digests) {
  constexpr size_t kAtATime = 64;
  std::vector<size_t> which;
  for (size_t i = 0; i < shards.size(); ++i)
    if (IsOnDevice(shards[i])) which.push_back(i);
  for (size_t first = 0; first < which.size(); first += kAtATime) {
    const auto some = std::span(which).subspan(first, std::min(kAtATime, which.size() - first));
    std::vector<DevicePart> parts;
    for (const size_t i : some) parts.push_back(WholeOf(shards[i], keys[i]));
    WC_ASSIGN_OR_RETURN(const auto found, DigestsOnDevices(devices, parts));
    for (size_t i = 0; i < some.size(); ++i) digests[some[i]] = found[i];
    WC_RETURN_IF_ERROR(WasInterrupted(interrupted));
  }
  return Status::Ok();
}

}  // namespace

Result<Digests> DigestsOf(std::span<const Shard> shards, ShardReader* reader, DeviceMemories& devices,
                          const Interrupted& interrupted) {
  std::vector<digest::TensorKey> keys;
  for (const Shard& shard : shards) {
    WC_ASSIGN_OR_RETURN(auto key, digest::TensorKey::Of(shard.tensor));
    keys.push_back(std::move(key));
  }
  std::vector<TensorDigest> found(shards.size());
  if (reader == nullptr) WC_RETURN_IF_ERROR(DigestDevices(shards, keys, devices, interrupted, found));
  Digests digests;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Shard& shard = shards[i];
    if (shard.declared) continue;
    if (reader != nullptr || !IsOnDevice(shard)) {
      digest::DigestSum sum(keys[i]);
      WC_RETURN_IF_ERROR(reader != nullptr ? AddFromReader(sum, shard, i, *reader)
                                           : sum.AddBox(BoxOf(shard), DataOf(shard), shard.strides));
      found[i] = sum.digest();
      WC_RETURN_IF_ERROR(WasInterrupted(interrupted));
    }
    digests.push_back({.tensor = shard.tensor, .box = BoxOf(shard), .digest = found[i]});
  }
  if (reader != nullptr) WC_RETURN_IF_ERROR(reader->Check());
  return digests;
}

}  // namespace weightcast::worker
