#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/copy_queue.h"
#include "device/copy_streams.h"

namespace weightcast::device {

/// The state of a queue that progress and the worker share. Batches lie in a ring of slots, their copies in
/// another; progress moves the newest and the oldest end, the worker the point up to which batches were
/// begun.
class CopyQueue::Core final : public Work {
 public:
  Core(const Worker& worker, const CopyQueueOptions& options);

  // --- The holder of progress
  std::optional<Ticket> Submit(std::span<const Copy> copies);
  [[nodiscard]] bool Fits(size_t count, uint64_t bytes) const;
  std::optional<Finished> TakeFinished();
  [[nodiscard]] bool HasFinished() const;
  [[nodiscard]] size_t unfinished() const { return newest_.load(std::memory_order_relaxed) - told_; }
  [[nodiscard]] uint64_t unfinished_bytes() const { return bytes_; }
  [[nodiscard]] Status failure() const;
  void Close() { closed_.store(true, std::memory_order_release); }

  // --- wc-device
  State Step() override;
  [[nodiscard]] bool GoesOnAlone() const override;

 private:
  struct Slot {
    uint64_t first = 0;  ///< Number of its first copy.
    size_t count = 0;
    uint64_t bytes = 0;
  };
  [[nodiscard]] Slot& SlotOf(uint64_t ticket) { return slots_[ticket % CopyLimits::kBatches]; }

  State Advance(bool closed);
  bool BeginAll();
  bool Look();
  bool Ask(uint64_t ticket);
  void StartFailing(const Status& why);
  State EndFailing();
  void Fail(const Status& why);

  const std::shared_ptr<Health> health_;
  std::array<Slot, CopyLimits::kBatches> slots_;
  std::vector<Copy> copies_;  ///< A ring of kCopies.

  // Progress's.
  uint64_t told_ = 0;        ///< The newest ticket that TakeFinished has told.
  uint64_t copies_end_ = 0;  ///< Number of the next copy.
  uint64_t copies_begin_ = 0;
  uint64_t bytes_ = 0;  ///< Of all batches that were not told.

  // Between them.
  std::atomic<uint64_t> newest_{0};  ///< The newest ticket given.
  std::atomic<bool> closed_{false};
  std::atomic<bool> failed_{false};  ///< Nothing runs any more, and nothing is begun.
  std::atomic<const CompletionWords*> words_{nullptr};
  Status failure_;  ///< Written once, before failed_.

  // The worker's.
  CopyStreams streams_;
  uint64_t begun_ = 0;  ///< The newest ticket that was begun.
  uint64_t over_ = 0;   ///< The newest ticket of which the worker knows that it is over.
  TimePoint asked_{};   ///< When an event was asked for errors.
  std::array<TimePoint, CopyLimits::kBatches> began_{};
  Status failing_;  ///< A call has failed; what was begun is waited for.
};

}  // namespace weightcast::device
