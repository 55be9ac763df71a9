#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "digest/digest.h"
#include "plan/table_format.h"
#include "weightcast/digest.h"
#include "weightcast/status.h"
#include "worker/batches.h"
#include "worker/device_digest.h"
#include "worker/device_memory.h"
#include "worker/route_segments.h"

namespace weightcast::worker {

/// Where the elements of an item are, in the destination's dtype.
struct ItemBytes {
  enum class In : uint8_t {
    kSource,       ///< In the source's shard, which is dense.
    kDestination,  ///< In the destination's shard.
    kAlone,        ///< One after another.
  };
  In in = In::kAlone;
  const std::byte* data = nullptr;  ///< The first byte of that shard, or of the item.
  int device = kHostMemory;
};

/// The digests of what goes from one source to one destination in one part of an update (docs/digest.md): one
/// for each tensor, in the order in which the transfers begin with them. Source and destination agree on that
/// order as they agree on the transfers, and each computes the digests from its own memory.
/// Any number of threads may add transfers at once.
class PairDigests {
 public:
  /// Whether two destinations of a source get the same: equal bytes for equal boxes of equal tensors, in
  /// equal transfers. Then the digests of one are those of the other.
  static bool Equal(const plan::RankTable& table, const Batches& a, const TransferRange& of_a,
                    const Batches& b, const TransferRange& of_b);

  /// `table` and `batches` must outlive this. Errors: those of digest::TensorKey::Of.
  static Result<std::unique_ptr<PairDigests>> Make(const plan::RankTable& table, const Batches& batches,
                                                   const TransferRange& transfers);

  /// Called for the items of a transfer in order.
  using Locate = std::function<ItemBytes(const Item&)>;
  /// Adds the bytes of one transfer, counted from the first of the part, unless somebody has. Returns when
  /// they are added: may block in the driver where some lie on one of `devices`. Errors: those of
  /// digest::DigestSum::AddPiece and DigestsOnDevices, of this transfer or of one before.
  Status Add(uint32_t transfer, DeviceMemories& devices, const Locate& locate);

  [[nodiscard]] size_t size() const { return keys_.size(); }
  /// Of all transfers that were added.
  [[nodiscard]] std::vector<TensorDigest> Sums() const;
  /// Names of the tensors whose digests are not those of `others`, which has size() of them.
  [[nodiscard]] std::vector<std::string> Differing(std::span<const TensorDigest> others) const;

 private:
  PairDigests(const plan::RankTable& table, const Batches& batches, const TransferRange& transfers)
      : table_(table), batches_(batches), first_(transfers.first), added_(transfers.count()) {}
  Status AddNow(std::span<const Item> items, DeviceMemories& devices, const Locate& locate);
  Result<TensorDigest> DigestOf(const Item& item, const ItemBytes& bytes) const;
  [[nodiscard]] DevicePart PartOf(const Item& item, const ItemBytes& bytes) const;
  [[nodiscard]] size_t PlaceOf(const Item& item) const;

  const plan::RankTable& table_;
  const Batches& batches_;
  const uint32_t first_;                      ///< Transfer of the part.
  std::vector<std::once_flag> added_;         ///< Per transfer of the part.
  std::unordered_map<int, size_t> place_of_;  ///< Index of the table's tensor → of `keys_`.
  std::vector<digest::TensorKey> keys_;
  mutable std::mutex mutex_;
  std::vector<TensorDigest> sums_;  ///< As keys_.
  Status error_;
};

}  // namespace weightcast::worker
