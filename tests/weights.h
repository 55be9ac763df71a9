#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weightcast/memory.h"
#include "weightcast/worker.h"

namespace weightcast::test {

/// How one side holds the model.
enum class Cut {
  kWhole,    ///< Every rank has all.
  kRows,     ///< Dimension 0, torch.chunk's rule (fsdp).
  kColumns,  ///< The last dimension (tensor parallel), rows where there is but one.
};

/// A small model with a bit of everything: a matrix of several transfers, odd shapes, a vector, a scalar.
std::vector<TensorInfo> SmallModel(DType dtype);

/// What a rank holds, in memory of its own (one Allocate'd buffer, or plain vectors).
class Weights {
 public:
  Weights(const std::vector<TensorInfo>& model, Cut cut, uint32_t rank, uint32_t ranks, bool shared = true);
  /// These parts, each at a place of its own.
  explicit Weights(std::span<const std::pair<TensorInfo, Box>> parts);

  [[nodiscard]] std::vector<Shard> shards() const { return shards_; }
  /// Every element gets a value that depends on version, tensor and place in the whole tensor.
  void Fill(int64_t version);
  /// How many elements are not those of `version`.
  [[nodiscard]] int64_t Wrong(int64_t version) const;
  [[nodiscard]] size_t bytes() const;

 private:
  void GiveMemory(bool shared);

  std::vector<Shard> shards_;
  std::shared_ptr<SharedBuffer> buffer_;
  std::vector<std::vector<std::byte>> plain_;
};

}  // namespace weightcast::test
