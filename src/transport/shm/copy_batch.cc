#include "transport/shm/copy_batch.h"

#include <span>
#include <utility>

namespace weightcast::transport::shm {

std::optional<uint64_t> CopyBatch::Add(device::Engine& engine, const device::Copy& copy, uint64_t most) {
  if (engine_ != &engine || count_ == kDeviceBatch || bytes_ >= most) Submit();
  // So that the whole batch is taken when it is submitted.
  if (count_ == 0 && !engine.Fits(kDeviceBatch, 2 * kStagedPiece)) return std::nullopt;
  engine_ = &engine;
  copies_[count_++] = copy;
  bytes_ += copy.length;
  return engine.newest() + 1;
}

void CopyBatch::Submit() {
  if (count_ > 0) (void)engine_->Submit(std::span<const device::Copy>(copies_).first(count_));
  count_ = 0;
  bytes_ = 0;
}

}  // namespace weightcast::transport::shm
