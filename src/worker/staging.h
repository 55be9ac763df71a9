#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/buffer.h"
#include "weightcast/endpoint.h"
#include "weightcast/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "worker/device_kernels.h"

namespace weightcast::worker {

/// Where the staged bytes of one transfer go: kMaxTransferBytes from `data` on.
struct StagingSpace {
  std::byte* data = nullptr;
  LocalSlice slice;
  /// Set: `data` is memory of their device, and they fill it; null: host memory.
  std::shared_ptr<device::Kernels> kernels{};

  /// The ordinal of that device, or StagingPool::kHost.
  [[nodiscard]] int device() const { return kernels == nullptr ? -1 : kernels->context()->ordinal(); }
};

/// Memory for what is cast or gathered before it is sent: blocks of kMaxTransferBytes each, in host memory
/// and in that of devices, made when first needed and kept. All together are never more than the setting
/// `staging` allows. Thread safe.
class StagingPool {
 public:
  static constexpr int kHost = -1;  ///< As a place; else the ordinal of a device.

  /// One transfer's worth. Goes back to its pool when destroyed: only when nobody reads it any more.
  class Block {
   public:
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) noexcept;
    ~Block();
    /// Makes its memory if it has none yet: may block in the driver. Where a device gives no memory or no
    /// kernels, in host memory. Errors: of that.
    Result<StagingSpace> Open();

   private:
    friend class StagingPool;
    struct Memory;
    Block(StagingPool* pool, int place, std::unique_ptr<Memory> memory);
    StagingPool* pool_;
    int place_;
    std::unique_ptr<Memory> memory_;  ///< Perhaps of another place, or none.
  };

  StagingPool(Endpoint& endpoint, const Settings& settings);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  /// How many blocks there may be at once; 0: the limit is too low for any.
  [[nodiscard]] size_t capacity() const { return capacity_; }
  /// `place`, or the host where that device cannot stage. No driver call.
  [[nodiscard]] int Usable(int place) const;
  /// A block for that place; nothing if all that the setting allows are in use. No driver call.
  std::optional<Block> TryTake(int place);
  /// The most bytes that were ever in use.
  [[nodiscard]] uint64_t peak_bytes() const;

 private:
  Result<std::unique_ptr<Block::Memory>> Make(int place);
  void Return(std::unique_ptr<Block::Memory> memory);

  Endpoint& endpoint_;
  DeviceKernels kernels_;
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Block::Memory>> free_;
  size_t in_use_ = 0;
  size_t peak_ = 0;
};

}  // namespace weightcast::worker
