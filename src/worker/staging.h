#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "weightcast/endpoint.h"
#include "weightcast/memory.h"
#include "weightcast/status.h"

namespace weightcast::worker {

/// Memory for what is cast or gathered before it is sent: blocks of kMaxTransferBytes each, made when first
/// needed and kept, never more than the watermark allows. Thread safe.
class StagingPool {
 public:
  /// One transfer's worth. Goes back to its pool when destroyed: only when nobody reads it any more.
  class Block {
   public:
    Block(Block&& other) noexcept = default;
    Block& operator=(Block&& other) noexcept;
    ~Block();
    [[nodiscard]] std::byte* data() const;
    [[nodiscard]] LocalSlice slice() const;  ///< All of it, from data() on.

   private:
    friend class StagingPool;
    struct Memory {
      std::shared_ptr<SharedBuffer> buffer;
      Region region;
    };
    Block(StagingPool* pool, std::unique_ptr<Memory> memory);
    StagingPool* pool_;
    std::unique_ptr<Memory> memory_;
  };

  /// `limit`: bytes.
  StagingPool(Endpoint& endpoint, uint64_t limit);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  /// How many blocks there may be at once; 0: the limit is too low for any.
  [[nodiscard]] size_t capacity() const { return capacity_; }
  /// A free block; nothing if all that the watermark allows are in use. Errors: of the memory.
  Result<std::optional<Block>> TryTake();
  /// The most bytes that were ever in use.
  [[nodiscard]] uint64_t peak_bytes() const;

 private:
  void Return(std::unique_ptr<Block::Memory> memory);

  Endpoint& endpoint_;
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Block::Memory>> free_;
  size_t in_use_ = 0;
  size_t peak_ = 0;
};

}  // namespace weightcast::worker
