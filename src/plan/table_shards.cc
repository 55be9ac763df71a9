#include "plan/table_shards.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace weightcast::plan {
namespace {

constexpr uint32_t kFree = UINT32_MAX;

}  // namespace

TensorTexts::TensorTexts(const Layout& layout) {
  VarintWriter out;
  for (int tensor = 0; tensor < layout.tensors(); ++tensor) {
    first_.push_back(out.size());
    const TensorInfo& info = layout.tensor(tensor);
    out.PutText(info.name);
    out.PutText(NameOf(info.dtype));
    out.Put(info.shape.size());
    for (const int64_t size : info.shape) out.Put(static_cast<uint64_t>(size));
  }
  first_.push_back(out.size());
  bytes_ = out.Take();
}

void TensorTexts::Write(int tensor, VarintWriter& out) const {
  const size_t first = first_[static_cast<size_t>(tensor)];
  out.PutRaw(std::string_view(bytes_).substr(first, first_[static_cast<size_t>(tensor) + 1] - first));
}

TableShards::TableShards(const Layout& layout, size_t routes, int own_rank)
    : layout_(layout),
      by_tensor_(own_rank >= 0 && !layout.several()),
      slots_(by_tensor_ ? static_cast<size_t>(layout.tensors()) : std::bit_ceil(2 * routes + 2), kFree),
      local_(static_cast<size_t>(layout.tensors()), -1),
      seen_(static_cast<size_t>(layout.ranks()), false) {}

uint32_t& TableShards::Slot(const LayoutShard& shard) {
  if (by_tensor_) return slots_[static_cast<size_t>(shard.tensor)];
  const size_t mask = slots_.size() - 1;
  const uint64_t key =
      (uint64_t{static_cast<uint32_t>(shard.rank)} << 32 | static_cast<uint32_t>(shard.tensor)) +
      shard.number * 0xbf58476d1ce4e5b9;
  size_t at = (key * 0x9e3779b97f4a7c15 >> 32) & mask;
  for (; slots_[at] != kFree; at = (at + 1) & mask) {
    const Shard& known = shards_[slots_[at]];
    if (known.rank == shard.rank && known.tensor == shard.tensor && known.number == shard.number) break;
  }
  return slots_[at];
}

uint32_t TableShards::Number(const LayoutShard& shard) {
  uint32_t& slot = Slot(shard);
  if (slot == kFree) {
    slot = static_cast<uint32_t>(shards_.size());
    Add(shard);
  }
  return slot;
}

void TableShards::Add(const LayoutShard& shard) {
  seen_[static_cast<size_t>(shard.rank)] = true;
  int& local = local_[static_cast<size_t>(shard.tensor)];
  if (local < 0) {
    local = static_cast<int>(tensors_.size());
    tensors_.push_back(shard.tensor);
  }
  const auto number = static_cast<uint32_t>(shards_.size());
  if (shard.copy > 0) copies_.emplace_back(number, shard.copy);
  shards_.push_back({.rank = shard.rank,
                     .tensor = shard.tensor,
                     .kept = shard.coords,
                     .coord = static_cast<uint32_t>(coords_.size()),
                     .number = shard.number});
  if (shard.coords == nullptr) {
    Box made;
    layout_.FindPatternBox(shard.tensor, shard.rank,
                           made);  // A verified table names no shard that is not there.
    coords_.insert(coords_.end(), made.offset.begin(), made.offset.end());
    coords_.insert(coords_.end(), made.size.begin(), made.size.end());
  }
  const int64_t* box = this->box(number);
  written_.Put(static_cast<uint64_t>(shard.rank));
  written_.Put(static_cast<uint64_t>(local));
  for (size_t c = 0; c < 2 * shard.dims; ++c) written_.Put(static_cast<uint64_t>(box[c]));
}

void TableShards::WriteTensors(const TensorTexts& texts, VarintWriter& out) const {
  out.Put(tensors_.size());
  for (const int tensor : tensors_) texts.Write(tensor, out);
}

void TableShards::WriteRanks(VarintWriter& out) const {
  out.Put(static_cast<uint64_t>(std::count(seen_.begin(), seen_.end(), true)));
  size_t last = 0;
  for (size_t rank = 0; rank < seen_.size(); ++rank)
    if (seen_[rank]) out.Put(rank - std::exchange(last, rank));
}

void TableShards::WriteShards(VarintWriter& out) const {
  out.Put(shards_.size());
  out.PutRaw(written_.bytes());
}

void TableShards::WriteCopies(VarintWriter& out) const {
  if (copies_.empty()) return;
  out.Put(copies_.size());
  uint32_t last = 0;
  for (const auto& [shard, copy] : copies_) {
    out.Put(shard - std::exchange(last, shard));
    out.Put(copy);
  }
}

}  // namespace weightcast::plan
