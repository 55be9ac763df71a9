#pragma once

#include <vector>

#include "checkpoint/checkpoint.h"
#include "plan/layout.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"

namespace weightcast::tools {

/// What one rank sends of a checkpoint, straight from the mapped files.
class FileShards {
 public:
  /// Every box of `layout` must be one run in its file, as boxes cut along dimension 0 are.
  /// Errors: kInvalidArgument, naming the tensor.
  static Result<FileShards> Map(checkpoint::Checkpoint file, const plan::Layout& layout, int rank);

  [[nodiscard]] const checkpoint::Checkpoint& file() const { return file_; }
  /// Read-only memory, valid as long as this object lives, also when it is moved.
  [[nodiscard]] const std::vector<Shard>& shards() const { return shards_; }

 private:
  explicit FileShards(checkpoint::Checkpoint file) : file_(std::move(file)) {}

  checkpoint::Checkpoint file_;
  std::vector<Shard> shards_;
};

}  // namespace weightcast::tools
