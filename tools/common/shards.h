#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plan/layout.h"
#include "tools/common/place.h"
#include "weightcast/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"

namespace weightcast::tools {

/// What one rank holds, side by side in one shared buffer, each shard on a cache line of its own. On a device
/// they lie in a block of device memory, and the buffer mirrors it.
class ShardMemory {
 public:
  /// Memory for every box that `rank` holds. Errors: kExhausted.
  static Result<ShardMemory> Make(const plan::Layout& layout, int rank);
  /// The same where `place` says. Errors are MakeBlock's, too.
  static Result<ShardMemory> Make(const plan::Layout& layout, int rank, const ShardPlace& place,
                                  const Settings& settings);

  /// As Trainer::Register and Inference::Register want them. Valid as long as this object exists.
  [[nodiscard]] const std::vector<Shard>& shards() const { return shards_; }
  [[nodiscard]] std::span<std::byte> bytes(size_t shard) const { return spans_[shard]; }
  /// The same shards in host memory: themselves, or the mirror.
  [[nodiscard]] const std::vector<Shard>& host_shards() const {
    return block_ == nullptr ? shards_ : mirror_;
  }
  /// Copies the mirror to the device, or back; nothing to do for host memory.
  Status WriteMirror() const;
  Status ReadMirror() const;

 private:
  std::shared_ptr<SharedBuffer> buffer_;
  std::shared_ptr<DeviceBlock> block_;  ///< Null: host memory.
  std::vector<Shard> mirror_;           ///< Of device memory.
  std::vector<Shard> shards_;
  std::vector<std::span<std::byte>> spans_;
};

/// Bytes that ShardMemory::Make takes.
int64_t MemoryOfRank(const plan::Layout& layout, int rank);

}  // namespace weightcast::tools
