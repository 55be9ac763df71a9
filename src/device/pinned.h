#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/worker.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// Host memory of somebody else's that copy engines reach for while this exists: a ring in shared memory.
/// Let go from any thread; the worker unpins it, and a task left with the worker after that finds it
/// unpinned.
class PinnedRange {
 public:
  /// On the worker's thread: 1.3 ms for 16 MiB. `bytes` must stay mapped until it is unpinned. kExhausted or
  /// kInternal where the driver pins no more: its bytes can still be copied, slowly.
  static Result<std::unique_ptr<PinnedRange>> Pin(std::shared_ptr<Worker> worker, std::span<std::byte> bytes);
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;
  ~PinnedRange();

 private:
  PinnedRange(std::shared_ptr<Worker> worker, std::byte* address);
  const std::shared_ptr<Worker> worker_;
  std::byte* const address_;
};

/// Pinned blocks of one length, at most `limit` bytes of them (the setting `pinned`).
///
/// Threads: the holder of progress alone. No call blocks or calls the driver; the worker pins blocks when
/// they are missed, and its WakeSignals ring when they are there. All blocks must be back, and no copy under
/// way, before the pool goes.
class PinnedPool {
 public:
  PinnedPool(std::shared_ptr<Worker> worker, size_t block, uint64_t limit);
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool();

  /// A block, or nullptr: ask again when one was given back or the worker has pinned another.
  std::byte* Take();
  void Give(std::byte* block);
  [[nodiscard]] size_t block() const { return block_; }
  /// Blocks that are pinned, taken or not.
  [[nodiscard]] size_t pinned() const { return pinned_; }
  /// The driver pins no more. Where pinned() is 0 there never will be a block.
  [[nodiscard]] bool refused() const;

 private:
  class Core;
  void Collect();
  void Grow();

  const std::shared_ptr<Worker> worker_;
  const size_t block_;
  const size_t most_;  ///< Blocks.
  const std::shared_ptr<Core> core_;
  std::byte* free_ = nullptr;  ///< Free blocks, each of which holds the address of the next.
  size_t pinned_ = 0;
};

}  // namespace weightcast::device
