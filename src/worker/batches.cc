#include "worker/batches.h"

#include <algorithm>
#include <numeric>

#include "plan/quantise.h"

namespace weightcast::worker {
namespace {

/// Whole bytes for every dtype, whole lines for most.
constexpr int64_t kCutElements = 64;
static_assert(plan::kBlockSize * plan::kMaxQuantisedColumns < kTransferBytes);

/// A route may be cut at multiples of this many elements.
int64_t CutOf(const plan::RankTable::Route& route) {
  if (route.transform != plan::Transform::kQuantise) return kCutElements;
  return plan::kBlockSize * route.src_box.size[1];
}

}  // namespace

std::span<const Item> Batches::Of(const TransferRange& range) const {
  const auto begin = [this](uint32_t transfer) {
    return transfer < transfers() ? first_item_[transfer] : items_.size();
  };
  return std::span(items_).subspan(begin(range.first), begin(range.end) - begin(range.first));
}

TransferRange Batches::OfPart(uint32_t part) const {
  const auto [first, end] = std::ranges::equal_range(part_of_, part);
  return {.first = static_cast<uint32_t>(first - part_of_.begin()),
          .end = static_cast<uint32_t>(end - part_of_.begin())};
}

int64_t Batches::BytesOf(const TransferRange& range) const {
  int64_t bytes = 0;
  for (uint32_t transfer = range.first; transfer < range.end; ++transfer) bytes += bytes_of_[transfer];
  return bytes;
}

/// Fills the transfers of one pair, route by route, part after part.
class BatchCutter {
 public:
  explicit BatchCutter(Batches& out) : out_(out) {}

  /// Cuts fall on multiples of `cut` elements.
  void Add(uint32_t route, int64_t elements, int64_t cut, DType dtype, uint32_t part) {
    open_ = open_ && out_.part_of_.back() == part;
    for (int64_t first = 0; first < elements;) {
      const int64_t count = Take(elements - first, cut, dtype);
      const int64_t bytes = BytesOf(dtype, count);
      if (!open_) Open(part);
      out_.items_.push_back({route, first, count});
      out_.bytes_of_.back() += bytes;
      first += count;
      open_ = first == elements && out_.bytes_of_.back() < kTransferBytes;
    }
  }

 private:
  /// How many of `rest` elements go into the transfer at hand.
  [[nodiscard]] int64_t Take(int64_t rest, int64_t cut, DType dtype) const {
    const int64_t room = kTransferBytes - (open_ ? out_.bytes_of_.back() : 0);
    if (BytesOf(dtype, rest) < room + kTransferBytes) return rest;
    const int64_t elements = room * 8 / BitsOf(dtype);
    return std::max(elements / cut * cut, cut);
  }
  void Open(uint32_t part) {
    out_.first_item_.push_back(static_cast<uint32_t>(out_.items_.size()));
    out_.bytes_of_.push_back(0);
    out_.part_of_.push_back(part);
  }

  Batches& out_;
  bool open_ = false;
};

std::vector<Batches> CutIntoBatches(const plan::RankTable& table, std::span<const uint32_t> parts) {
  std::vector<Batches> batches(table.peers.size());
  std::vector<BatchCutter> cutters(batches.begin(), batches.end());
  std::vector<uint32_t> order(table.routes.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto part_of = [&](uint32_t index) {
    return parts.empty() ? 0 : parts[table.routes[index].dst_shard];
  };
  if (!std::ranges::is_sorted(order, {}, part_of)) std::ranges::stable_sort(order, {}, part_of);
  for (const uint32_t index : order) {
    const auto& route = table.routes[index];
    const DType dtype = table.DestinationTensor(route.dst_shard).dtype;
    const auto peer = std::lower_bound(table.peers.begin(), table.peers.end(), route.peer);
    cutters[static_cast<size_t>(peer - table.peers.begin())].Add(index, plan::ElementsOf(route.src_box),
                                                                 CutOf(route), dtype, part_of(index));
  }
  return batches;
}

}  // namespace weightcast::worker
