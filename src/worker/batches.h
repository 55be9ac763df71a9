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

/// The transfers from one source to one destination, numbered 0.. as their signals are. A pure function
/// of the routes between the two, so that sender and receiver agree on it without a word.
class Batches {
 public:
  [[nodiscard]] uint32_t transfers() const { return static_cast<uint32_t>(bytes_of_.size()); }
  /// The parts of one transfer, in the order of its bytes.
  [[nodiscard]] std::span<const Item> Of(uint32_t transfer) const;
  /// Bytes of one transfer as they land: those of the destination's dtype.
  [[nodiscard]] int64_t BytesOf(uint32_t transfer) const { return bytes_of_[transfer]; }
  [[nodiscard]] int64_t bytes() const { return bytes_; }

 private:
  friend class BatchCutter;

  std::vector<Item> items_;
  std::vector<uint32_t> first_item_;  ///< Per transfer.
  std::vector<int64_t> bytes_of_;     ///< Per transfer.
  int64_t bytes_ = 0;
};

/// One for each of `table.peers`, in that order. Consecutive routes fill a transfer; a large route is
/// cut into several.
std::vector<Batches> CutIntoBatches(const plan::RankTable& table);

}  // namespace weightcast::worker
