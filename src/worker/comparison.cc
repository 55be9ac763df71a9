#include "worker/comparison.h"

#include <utility>

namespace weightcast::worker {

Result<std::unique_ptr<PairDigests>> PairDigests::Make(const plan::RankTable& table, const Batches& batches,
                                                       const TransferRange& transfers) {
  std::unique_ptr<PairDigests> made(new PairDigests(table, batches));
  for (uint32_t transfer = transfers.first; transfer < transfers.end; ++transfer) {
    for (const Item& item : batches.Of(transfer)) {
      const int tensor = table.destination_shards[table.routes[item.route].dst_shard].tensor;
      if (!made->place_of_.try_emplace(tensor, made->keys_.size()).second) continue;
      WC_ASSIGN_OR_RETURN(auto key,
                          digest::TensorKey::Of(table.destination_tensors[static_cast<size_t>(tensor)]));
      made->keys_.push_back(std::move(key));
    }
  }
  made->sums_.resize(made->keys_.size());
  return made;
}

Status PairDigests::Add(uint32_t transfer, const Locate& locate) {
  std::vector<std::pair<size_t, TensorDigest>> parts;
  for (const Item& item : batches_.Of(transfer)) {
    const auto& route = table_.routes[item.route];
    const auto& shard = table_.destination_shards[route.dst_shard];
    const size_t place = place_of_.at(shard.tensor);
    WC_ASSIGN_OR_RETURN(const RoutePieces runs, PiecesOf(table_, route));
    digest::DigestSum sum(keys_[place]);
    Status status;
    ForEachRun(runs, item, [&](const Run& run) {
      const std::byte* bytes = locate(item, run);
      if (status.ok())
        status = sum.AddPiece(shard.box, run.dst_offset, {bytes, static_cast<size_t>(run.dst_bytes)});
    });
    WC_RETURN_IF_ERROR(status);
    parts.emplace_back(place, sum.digest());
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [place, digest] : parts) sums_[place] += digest;
  return Status::Ok();
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
