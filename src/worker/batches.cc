#include "worker/batches.h"

#include <algorithm>

namespace weightcast::worker {
namespace {

/// Cuts fall on multiples of this many elements: whole bytes for every dtype, whole lines for most.
constexpr int64_t kCutElements = 64;

}  // namespace

std::span<const Item> Batches::Of(uint32_t transfer) const {
  const size_t first = first_item_[transfer];
  const size_t last = transfer + 1 < transfers() ? first_item_[transfer + 1] : items_.size();
  return std::span(items_).subspan(first, last - first);
}

/// Fills the transfers of one pair, route by route.
class BatchCutter {
 public:
  explicit BatchCutter(Batches& out) : out_(out) {}

  void Add(uint32_t route, int64_t elements, DType dtype) {
    for (int64_t first = 0; first < elements;) {
      const int64_t count = Take(elements - first, dtype);
      const int64_t bytes = BytesOf(dtype, count);
      if (!open_) Open();
      out_.items_.push_back({route, first, count});
      out_.bytes_of_.back() += bytes;
      out_.bytes_ += bytes;
      first += count;
      open_ = first == elements && out_.bytes_of_.back() < kTransferBytes;
    }
  }

 private:
  /// How many of `rest` elements go into the transfer at hand.
  [[nodiscard]] int64_t Take(int64_t rest, DType dtype) const {
    const int64_t room = kTransferBytes - (open_ ? out_.bytes_of_.back() : 0);
    if (BytesOf(dtype, rest) < room + kTransferBytes) return rest;
    const int64_t elements = room * 8 / BitsOf(dtype);
    return std::max(elements / kCutElements * kCutElements, kCutElements);
  }
  void Open() {
    out_.first_item_.push_back(static_cast<uint32_t>(out_.items_.size()));
    out_.bytes_of_.push_back(0);
  }

  Batches& out_;
  bool open_ = false;
};

std::vector<Batches> CutIntoBatches(const plan::RankTable& table) {
  std::vector<Batches> batches(table.peers.size());
  std::vector<BatchCutter> cutters(batches.begin(), batches.end());
  for (uint32_t index = 0; index < table.routes.size(); ++index) {
    const auto& route = table.routes[index];
    const auto& shard = table.destination_shards[route.dst_shard];
    const TensorInfo& tensor = table.destination_tensors[static_cast<size_t>(shard.tensor)];
    const auto peer = std::lower_bound(table.peers.begin(), table.peers.end(), route.peer);
    cutters[static_cast<size_t>(peer - table.peers.begin())].Add(index, plan::ElementsOf(route.src_box),
                                                                 tensor.dtype);
  }
  return batches;
}

}  // namespace weightcast::worker
