#include "device/pinned.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"

namespace weightcast::device {
namespace {

std::byte* NextOf(const std::byte* block) {
  std::byte* next = nullptr;
  std::memcpy(&next, block, sizeof next);
  return next;
}

void SetNext(std::byte* block, std::byte* next) { std::memcpy(block, &next, sizeof next); }

}  // namespace

PinnedRange::PinnedRange(std::shared_ptr<Worker> worker, std::byte* address)
    : worker_(std::move(worker)), address_(address) {}

Result<std::unique_ptr<PinnedRange>> PinnedRange::Pin(std::shared_ptr<Worker> worker,
                                                      std::span<std::byte> bytes) {
  Health& health = *worker->health();
  WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(health, MemHostRegister, bytes.data(), bytes.size(),
                                     drivers::CU_MEMHOSTREGISTER_PORTABLE));
  std::unique_ptr<PinnedRange> range(new PinnedRange(std::move(worker), bytes.data()));
  drivers::CUdeviceptr seen = 0;
  WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(health, MemHostGetDevicePointer, &seen, bytes.data(), 0));
  if (seen == reinterpret_cast<drivers::CUdeviceptr>(bytes.data())) return range;
  return Error(Code::kUnavailable, "device ", health.context().ordinal(),
               " sees pinned host memory at another address than this process; "
               "use a GPU with unified addressing");
}

PinnedRange::~PinnedRange() {
  worker_->RunAfterCopies([health = worker_->health(), address = address_] {
    health->context().cuda().MemHostUnregister(address);
  });
}

/// What the worker and the pool share.
class PinnedPool::Core {
 public:
  Core(std::shared_ptr<Health> health, size_t block) : health_(std::move(health)), block_(block) {}

  // --- wc-device
  void PinOne() {
    void* pinned = nullptr;
    const Status status = health_->Check(
        health_->context().cuda().MemHostAlloc(&pinned, block_, drivers::CU_MEMHOSTALLOC_PORTABLE),
        "cuMemHostAlloc");
    if (!status.ok()) {
      WC_LOG(kWarning, "no more host memory can be pinned: ", status.message(),
             "; give this process more memory (its control group, the host) or lower setting pinned");
      refused.store(true, std::memory_order_release);
    } else {
      all_.push_back(pinned);
      SetNext(static_cast<std::byte*>(pinned), nullptr);
      arrived.store(static_cast<std::byte*>(pinned), std::memory_order_release);
    }
    growing.store(false, std::memory_order_release);
  }
  void FreeAll() {
    for (void* const block : std::exchange(all_, {})) health_->context().cuda().MemFreeHost(block);
  }

  // --- Between them: one block at a time is under way
  std::atomic<bool> growing{false};
  std::atomic<bool> refused{false};
  std::atomic<std::byte*> arrived{nullptr};

 private:
  const std::shared_ptr<Health> health_;
  const size_t block_;
  std::vector<void*> all_;
};

PinnedPool::PinnedPool(std::shared_ptr<Worker> worker, size_t block, uint64_t limit)
    : worker_(std::move(worker)),
      block_(block),
      most_(std::max<size_t>(limit / block, 1)),
      core_(std::make_shared<Core>(worker_->health(), block)) {}

PinnedPool::~PinnedPool() {
  worker_->RunAfterCopies([core = core_] { core->FreeAll(); });
}

void PinnedPool::Collect() {
  std::byte* const block = core_->arrived.exchange(nullptr, std::memory_order_acquire);
  if (block == nullptr) return;
  ++pinned_;
  Give(block);
}

void PinnedPool::Grow() {
  if (pinned_ >= most_ || refused() || core_->growing.load(std::memory_order_acquire)) return;
  if (core_->arrived.load(std::memory_order_relaxed) != nullptr) return;  // Since Collect: for the next Take.
  core_->growing.store(true, std::memory_order_relaxed);
  worker_->Run([core = core_] { core->PinOne(); });
}

std::byte* PinnedPool::Take() {
  Collect();
  if (free_ == nullptr) {
    Grow();
    return nullptr;
  }
  return std::exchange(free_, NextOf(free_));
}

void PinnedPool::Give(std::byte* block) {
  SetNext(block, free_);
  free_ = block;
}

bool PinnedPool::refused() const { return core_->refused.load(std::memory_order_acquire); }

}  // namespace weightcast::device
