#include "tools/common/shards.h"

#include "plan/box.h"

namespace weightcast::tools {
namespace {

constexpr int64_t kCacheLine = 64;

int64_t RoundUp(int64_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }

}  // namespace

int64_t MemoryOfRank(const plan::Layout& layout, int rank) {
  int64_t bytes = 0;
  for (int i = 0; i < layout.tensors(); ++i)
    for (const Box& box : layout.BoxesOf(i, rank))
      bytes += RoundUp(BytesOf(layout.tensor(i).dtype, plan::ElementsOf(box)));
  return bytes;
}

Result<ShardMemory> ShardMemory::Make(const plan::Layout& layout, int rank) {
  ShardMemory memory;
  if (const int64_t total = MemoryOfRank(layout, rank); total > 0) {
    WC_ASSIGN_OR_RETURN(memory.buffer_, Allocate(static_cast<size_t>(total)));
  }
  int64_t at = 0;
  for (int i = 0; i < layout.tensors(); ++i) {
    for (Box& box : layout.BoxesOf(i, rank)) {
      const int64_t bytes = BytesOf(layout.tensor(i).dtype, plan::ElementsOf(box));
      const auto place = memory.buffer_->bytes().subspan(static_cast<size_t>(at), static_cast<size_t>(bytes));
      memory.spans_.push_back(place);
      memory.shards_.push_back(
          {.tensor = layout.tensor(i), .part = std::move(box), .memory = HostMemory(place)});
      at += RoundUp(bytes);
    }
  }
  return memory;
}

Result<ShardMemory> ShardMemory::Make(const plan::Layout& layout, int rank, const ShardPlace& place,
                                      const Settings& settings) {
  WC_ASSIGN_OR_RETURN(ShardMemory memory, Make(layout, rank));
  if (place.kind == "host" || memory.buffer_ == nullptr) return memory;
  const auto whole = memory.buffer_->bytes();
  WC_ASSIGN_OR_RETURN(memory.block_, MakeBlock(place, settings, whole.size()));
  memory.mirror_ = memory.shards_;
  for (Shard& shard : memory.shards_) {
    const auto offset = shard.memory.address - whole.data();
    shard.memory.kind = MemoryKind::kDevice;
    shard.memory.device = memory.block_->memory().device;
    shard.memory.address = memory.block_->memory().address + offset;
  }
  return memory;
}

Status ShardMemory::WriteMirror() const {
  return block_ == nullptr ? Status::Ok() : block_->Write(0, buffer_->bytes());
}

Status ShardMemory::ReadMirror() const {
  return block_ == nullptr ? Status::Ok() : block_->Read(0, buffer_->bytes());
}

}  // namespace weightcast::tools
