#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/intrusive_ptr.h"
#include "base/task_queue.h"
#include "endpoint/transfers/chunks.h"
#include "endpoint/transfers/flag.h"
#include "endpoint/transfers/registrations.h"
#include "weightcast/transfer.h"

namespace weightcast {

namespace endpoint {
class TransferPool;

/// What a transfer needs of its endpoint.
class TransferOwner {
 public:
  virtual TransferPool& transfers() = 0;
  /// Under progress.
  virtual void Begin(const IntrusivePtr<Transfer::State>& transfer) = 0;

 protected:
  ~TransferOwner() = default;
};

/// A chunk that a lane took and did not deliver.
struct Resend {
  uint32_t chunk = 0;
  uint32_t attempts = 0;
  ChunkCursor begin;
};
}  // namespace endpoint

/// One transfer. What stands first is fixed before it is handed over; the rest belongs to the holder of
/// progress, but for `phase` and, once phase is 1, `outcome`. Made by a TransferPool, to which the last
/// reference gives it back.
class Transfer::State final : public Task {
 public:
  static constexpr uint32_t kEnded = 1;
  static constexpr uint32_t kFenced = 2;

  /// Under progress, once: begins. As a task it holds one reference.
  void Run() override;
  void Dispose() override { DropReference(); }

  void AddReference() { references_.fetch_add(1, std::memory_order_relaxed); }
  void DropReference();

  std::shared_ptr<endpoint::TransferOwner> owner;
  std::shared_ptr<void> connection;  ///< Held until fenced.
  transport::OpKind kind = transport::OpKind::kWrite;
  TransferOptions options;
  std::vector<PlacedPiece> pieces;
  std::vector<endpoint::RegisteredMemory*> locals;  ///< Each used once or more; counted until fenced.
  std::vector<uint32_t> remotes;                    ///< Indices of imports; the same.
  uint64_t bytes = 0;
  uint32_t chunks = 1;
  bool device = false;       ///< Some of it is device memory.
  uint64_t chunk_bytes = 0;  ///< Of its chunks.

  endpoint::Flag phase;
  Status outcome;

  ChunkCursor next;          ///< Where the next chunk to be cut begins.
  uint32_t next_chunk = 0;   ///< Its number.
  uint32_t done = 0;         ///< Chunks delivered.
  uint32_t outstanding = 0;  ///< Chunks at the transport.
  std::vector<endpoint::Resend> resend;
  // The sender's list of all that are not fenced.
  State* before = nullptr;
  State* after = nullptr;
  // The SendQueue's.
  bool waiting = false;
  State* next_waiting = nullptr;

 private:
  friend class endpoint::TransferPool;
  /// Forgets everything but the room in its lists.
  void Clear();

  std::atomic<uint32_t> references_{1};
  State* next_free_ = nullptr;  ///< In the pool.
};

namespace endpoint {

using TransferRef = IntrusivePtr<Transfer::State>;

/// One more reference.
inline TransferRef Share(Transfer::State& state) {
  state.AddReference();
  return TransferRef::Adopt(&state);
}

/// Transfers that are not in use: a small write allocates nothing. Any thread; no lock.
class TransferPool {
 public:
  TransferPool() = default;
  TransferPool(const TransferPool&) = delete;
  TransferPool& operator=(const TransferPool&) = delete;
  ~TransferPool();

  TransferRef Take();
  void GiveBack(Transfer::State* unused);

 private:
  static constexpr uint32_t kMostFree = 1024;

  void Push(Transfer::State* first, Transfer::State* last);

  std::atomic<Transfer::State*> free_{nullptr};
  std::atomic<uint32_t> count_{0};  ///< About how many.
};

}  // namespace endpoint
}  // namespace weightcast
