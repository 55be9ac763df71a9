#pragma once

#include <memory>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "plan/layout.h"
#include "tools/common/place.h"
#include "weightcast/memory.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"

namespace weightcast::tools {

/// What one rank sends of a checkpoint, read from the files when it is sent. Thread safe once open.
class FileShards final : public ShardReader {
 public:
  /// Every box of `layout` must be one run in its file, as boxes cut along dimension 0 are.
  /// Errors: kInvalidArgument, naming the tensor.
  static Result<std::shared_ptr<FileShards>> Open(checkpoint::Checkpoint file, const plan::Layout& layout,
                                                  int rank);
  /// Reads everything into memory of its own; the files may change afterwards. Errors: of memory and files.
  Status CopyToMemory();
  /// The same into memory of a GPU. Errors: MakeBlock's, and of files.
  Status CopyToDevice(const ShardPlace& place, const Settings& settings);

  /// Without memory, unless it was copied.
  [[nodiscard]] const std::vector<Shard>& shards() const { return shards_; }
  [[nodiscard]] bool in_memory() const { return copy_ != nullptr || block_ != nullptr; }

  Status Read(size_t shard, uint64_t offset, std::span<std::byte> out) override;
  Status Check() override { return in_memory() ? Status::Ok() : file_.CheckUnchanged(); }

 private:
  struct Place {
    size_t tensor = 0;  ///< Of the file.
    uint64_t offset = 0;
    size_t bytes = 0;
  };
  explicit FileShards(checkpoint::Checkpoint file) : file_(std::move(file)) {}
  /// Of a copy, each shard on a cache line of its own.
  [[nodiscard]] size_t TotalBytes() const;

  checkpoint::Checkpoint file_;
  std::vector<Shard> shards_;
  std::vector<Place> places_;  ///< As shards_.
  std::shared_ptr<SharedBuffer> copy_;
  std::shared_ptr<DeviceBlock> block_;
};

}  // namespace weightcast::tools
