#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/table_format.h"

namespace weightcast::worker {

/// A transfer closes as soon as it has this many bytes, and has less than twice as many.
inline constexpr int64_t kTransferBytes = int64_t{4} << 20;
inline constexpr int64_t kMaxTransferBytes = 2 * kTransferBytes;

/// Elements [first, first + count) of a route's box, counted in row-major order.
struct Item {
  uint32_t route = 0;  ///< Index into RankTable::routes.
  int64_t first = 0;
  int64_t count = 0;
  friend bool operator==(const Item&, const Item&) = default;
};

/// Transfers [first, end).
struct TransferRange {
  uint32_t first = 0;
  uint32_t end = 0;
  [[nodiscard]] uint32_t count() const { return end - first; }
  friend bool operator==(const TransferRange&, const TransferRange&) = default;
};

/// The transfers from one source to one destination, numbered 0.. part after part. A pure function of the
/// routes between the two and of the parts of the destination's shards, so that sender and receiver agree on
/// it without a word.
class Batches {
 public:
  [[nodiscard]] uint32_t transfers() const { return static_cast<uint32_t>(bytes_of_.size()); }
  /// Those of one part of the update; their signals count from its first. None of a part without routes.
  [[nodiscard]] TransferRange OfPart(uint32_t part) const;
  /// The parts of one transfer, in the order of its bytes.
  [[nodiscard]] std::span<const Item> Of(uint32_t transfer) const { return Of({transfer, transfer + 1}); }
  [[nodiscard]] std::span<const Item> Of(const TransferRange& range) const;
  /// Bytes of one transfer as they land: those of the destination's dtype.
  [[nodiscard]] int64_t BytesOf(uint32_t transfer) const { return bytes_of_[transfer]; }
  [[nodiscard]] int64_t BytesOf(const TransferRange& range) const;

 private:
  friend class BatchCutter;

  std::vector<Item> items_;
  std::vector<uint32_t> first_item_;  ///< Per transfer.
  std::vector<int64_t> bytes_of_;     ///< Per transfer.
  std::vector<uint32_t> part_of_;     ///< Per transfer; ascending.
};

/// One for each of `table.peers`, in that order. Consecutive routes of a part fill a transfer; a large route
/// is cut into several; one that is quantised between rows of blocks. `parts`: the part of each of the
/// table's destination_shards; empty: all 0.
std::vector<Batches> CutIntoBatches(const plan::RankTable& table, std::span<const uint32_t> parts = {});

}  // namespace weightcast::worker
