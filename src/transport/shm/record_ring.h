#pragma once

#include <cstdint>
#include <span>

#include "transport/shm/records.h"

namespace weightcast::transport::shm {

/// Writing end of an inbox's records: one thread of one process. `taken` belongs to the reader and is
/// not trusted.
class RecordProducer {
 public:
  RecordProducer(std::span<Record, kRecords> records, const Word& taken)
      : records_(records), taken_(&taken) {}

  /// Whether `count` records fit now.
  [[nodiscard]] bool HasSpace(uint32_t count = 1) {
    if (next_ - seen_ + count <= kRecords) return true;
    const uint64_t taken = taken_->load(std::memory_order_acquire);
    if (taken - seen_ > next_ - seen_) {  // Backwards, or ahead of what was written.
      broken_ = true;
      return false;
    }
    seen_ = taken;
    return next_ - seen_ + count <= kRecords;
  }
  /// Only after HasSpace. Sequentially consistent, so that a reader about to sleep either sees the
  /// record or is seen asleep.
  void Push(const RecordBody& body) {
    Record& record = records_[next_ % kRecords];
    for (size_t i = 0; i < body.size(); ++i) record.body[i].store(body[i], std::memory_order_relaxed);
    record.sequence.store(++next_, std::memory_order_seq_cst);
  }
  /// The reader wrote nonsense into its counter.
  [[nodiscard]] bool broken() const { return broken_; }

 private:
  std::span<Record, kRecords> records_;
  const Word* taken_;
  uint64_t next_ = 0;
  uint64_t seen_ = 0;  ///< Last valid value of *taken_.
  bool broken_ = false;
};

/// Reading end: one thread of the owner.
class RecordConsumer {
 public:
  RecordConsumer(std::span<Record, kRecords> records, Word& taken) : records_(records), taken_(&taken) {}

  [[nodiscard]] bool Empty() const {
    return records_[next_ % kRecords].sequence.load(std::memory_order_seq_cst) != next_ + 1;
  }
  /// Copies the next record out; false when there is none.
  bool Pop(RecordBody& body) {
    if (Empty()) return false;
    const Record& record = records_[next_ % kRecords];
    for (size_t i = 0; i < body.size(); ++i) body[i] = record.body[i].load(std::memory_order_relaxed);
    ++next_;
    return true;
  }
  /// Gives the room of popped records back; true if there was any.
  bool Publish() {
    if (published_ == next_) return false;
    published_ = next_;
    taken_->store(next_, std::memory_order_seq_cst);
    return true;
  }

 private:
  std::span<Record, kRecords> records_;
  Word* taken_;
  uint64_t next_ = 0;
  uint64_t published_ = 0;
};

}  // namespace weightcast::transport::shm
