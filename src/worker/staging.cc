#include "worker/staging.h"

#include <algorithm>
#include <utility>

#include "worker/batches.h"

namespace weightcast::worker {

/// The region ends before the memory that it names.
struct StagingPool::Block::Memory {
  int place = kHost;
  std::shared_ptr<SharedBuffer> host;
  std::shared_ptr<device::Kernels> kernels;
  std::unique_ptr<device::Buffer> device;
  std::optional<Region> region;

  [[nodiscard]] StagingSpace space() const {
    return {.data = place == kHost ? host->bytes().data() : device->address(),
            .slice = region->Whole(),
            .kernels = kernels};
  }
};

StagingPool::Block::Block(StagingPool* pool, int place, std::unique_ptr<Memory> memory)
    : pool_(pool), place_(place), memory_(std::move(memory)) {}

StagingPool::Block& StagingPool::Block::operator=(Block&& other) noexcept {
  if (this != &other) {
    if (pool_ != nullptr) pool_->Return(std::move(memory_));
    pool_ = std::exchange(other.pool_, nullptr);
    place_ = other.place_;
    memory_ = std::move(other.memory_);
  }
  return *this;
}

StagingPool::Block::Block(Block&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), place_(other.place_), memory_(std::move(other.memory_)) {}

StagingPool::Block::~Block() {
  if (pool_ != nullptr) pool_->Return(std::move(memory_));
}

Result<StagingSpace> StagingPool::Block::Open() {
  if (memory_ != nullptr && memory_->place == place_) return memory_->space();
  memory_.reset();  // Of another place: its room is wanted.
  auto made = pool_->Make(place_);
  if (!made.ok() && place_ != kHost) {
    pool_->kernels_.GiveUp(place_, "that need a cast or are not contiguous", made.status());
    place_ = kHost;
    made = pool_->Make(kHost);
  }
  WC_RETURN_IF_ERROR(made.status());
  memory_ = std::move(*made);
  return memory_->space();
}

StagingPool::StagingPool(Endpoint& endpoint, const Settings& settings)
    : endpoint_(endpoint),
      kernels_(settings),
      capacity_(static_cast<size_t>(settings.staging / kMaxTransferBytes)) {}

StagingPool::~StagingPool() = default;

int StagingPool::Usable(int place) const { return kernels_.Usable(place) ? place : kHost; }

std::optional<StagingPool::Block> StagingPool::TryTake(int place) {
  const std::lock_guard lock(mutex_);
  if (in_use_ == capacity_) return std::nullopt;
  ++in_use_;
  peak_ = std::max(peak_, in_use_);
  auto found = std::ranges::find_if(free_, [&](const auto& memory) { return memory->place == place; });
  // No room for one more: one of another place is given up for it.
  if (found == free_.end() && in_use_ + free_.size() > capacity_) found = free_.begin();
  std::unique_ptr<Block::Memory> memory;
  if (found != free_.end()) {
    memory = std::move(*found);
    free_.erase(found);
  }
  return Block(this, place, std::move(memory));
}

Result<std::unique_ptr<StagingPool::Block::Memory>> StagingPool::Make(int place) {
  auto made = std::make_unique<Block::Memory>();
  made->place = place;
  weightcast::Memory memory;
  if (place == kHost) {
    WC_ASSIGN_OR_RETURN(made->host, Allocate(static_cast<size_t>(kMaxTransferBytes)));
    memory = HostMemory(made->host->bytes());
  } else {
    WC_ASSIGN_OR_RETURN(made->kernels, kernels_.Of(place));
    WC_ASSIGN_OR_RETURN(made->device, device::Buffer::Allocate(made->kernels->context(),
                                                               static_cast<size_t>(kMaxTransferBytes)));
    memory = made->device->memory();
  }
  WC_ASSIGN_OR_RETURN(auto region, endpoint_.Register(memory, Access::kLocal));
  made->region.emplace(std::move(region));
  return made;
}

uint64_t StagingPool::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_ * static_cast<uint64_t>(kMaxTransferBytes);
}

void StagingPool::Return(std::unique_ptr<Block::Memory> memory) {
  const std::lock_guard lock(mutex_);
  if (memory != nullptr) free_.push_back(std::move(memory));
  --in_use_;
}

}  // namespace weightcast::worker
