#include "worker/staging.h"

#include <algorithm>
#include <utility>

#include "worker/batches.h"

namespace weightcast::worker {

StagingPool::Block::Block(StagingPool* pool, std::unique_ptr<Memory> memory)
    : pool_(pool), memory_(std::move(memory)) {}

StagingPool::Block& StagingPool::Block::operator=(Block&& other) noexcept {
  if (this != &other) {
    if (memory_ != nullptr) pool_->Return(std::move(memory_));
    pool_ = other.pool_;
    memory_ = std::move(other.memory_);
  }
  return *this;
}

StagingPool::Block::~Block() {
  if (memory_ != nullptr) pool_->Return(std::move(memory_));
}

std::byte* StagingPool::Block::data() const { return memory_->buffer->bytes().data(); }
LocalSlice StagingPool::Block::slice() const { return memory_->region.Whole(); }

StagingPool::StagingPool(Endpoint& endpoint, uint64_t limit)
    : endpoint_(endpoint), capacity_(static_cast<size_t>(limit / kMaxTransferBytes)) {}

StagingPool::~StagingPool() = default;

Result<std::optional<StagingPool::Block>> StagingPool::TryTake() {
  std::unique_ptr<Block::Memory> memory;
  {
    const std::lock_guard lock(mutex_);
    if (in_use_ == capacity_) return std::optional<Block>();
    ++in_use_;
    peak_ = std::max(peak_, in_use_);
    if (!free_.empty()) {
      memory = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (memory != nullptr) return std::optional(Block(this, std::move(memory)));
  const auto make = [&]() -> Result<std::optional<Block>> {
    WC_ASSIGN_OR_RETURN(auto buffer, Allocate(static_cast<size_t>(kMaxTransferBytes)));
    WC_ASSIGN_OR_RETURN(auto region, endpoint_.Register(buffer->bytes(), Access::kLocal));
    auto made = std::make_unique<Block::Memory>(Block::Memory{std::move(buffer), std::move(region)});
    return std::optional(Block(this, std::move(made)));
  };
  auto made = make();
  if (!made.ok()) {
    const std::lock_guard lock(mutex_);
    --in_use_;
  }
  return made;
}

uint64_t StagingPool::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_ * static_cast<uint64_t>(kMaxTransferBytes);
}

void StagingPool::Return(std::unique_ptr<Block::Memory> memory) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(memory));
  --in_use_;
}

}  // namespace weightcast::worker
