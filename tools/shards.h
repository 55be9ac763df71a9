#pragma once

#include <memory>
#include <span>
#include <vector>

#include "plan/layout.h"
#include "weightcast/memory.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"

namespace weightcast::tools {

/// What one rank holds, side by side in one shared buffer, each shard on a cache line of its own.
class ShardMemory {
 public:
  /// Memory for every box that `rank` holds. Errors: kExhausted.
  static Result<ShardMemory> Make(const plan::Layout& layout, int rank);

  /// As Trainer::Register and Inference::Register want them. Valid as long as this object lives.
  [[nodiscard]] const std::vector<Shard>& shards() const { return shards_; }
  [[nodiscard]] std::span<std::byte> bytes(size_t shard) const { return spans_[shard]; }

 private:
  std::shared_ptr<SharedBuffer> buffer_;
  std::vector<Shard> shards_;
  std::vector<std::span<std::byte>> spans_;
};

/// Bytes that ShardMemory::Make takes.
int64_t MemoryOfRank(const plan::Layout& layout, int rank);

}  // namespace weightcast::tools
