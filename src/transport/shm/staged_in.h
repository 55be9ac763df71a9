#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/ring.h"
#include "transport/shm/channel.h"
#include "transport/shm/context.h"
#include "transport/shm/copy_batch.h"
#include "transport/shm/inbox.h"
#include "transport/shm/messages.h"
#include "transport/shm/outbox.h"
#include "transport/shm/records.h"
#include "transport/shm/stage_ring.h"

namespace weightcast::transport::shm {

/// A piece that the peer has brought into this side's staging ring: of one of its writes, or of a read of
/// this side's. From its record until it is told how it went.
struct Arrival {
  /// Of a read: `region` and `offset` are this side's, where the bytes land.
  PutRecord record;
  SignalRecord signal;
  bool has_signal = false;
  bool read = false;
  Code code = Code::kOk;             ///< Why it is not put in place.
  uint64_t end = 0;                  ///< Position after it in the ring.
  std::byte* to = nullptr;           ///< Set with `engine`.
  device::Engine* engine = nullptr;  ///< That copies it; null: nothing is under way.
  uint64_t ticket = 0;
  bool placed = false;  ///< Its copy was begun.

  [[nodiscard]] bool wants_signal() const { return !read && (record.flags & kSignalled) != 0 && !has_signal; }
  [[nodiscard]] bool Over() const {
    return (placed || code != Code::kOk) && (engine == nullptr || engine->Over(ticket));
  }
  /// Of one that is over.
  [[nodiscard]] Code Outcome() const {
    if (code != Code::kOk || engine == nullptr) return code;
    return engine->Arrived(ticket) ? Code::kOk : Code::kInternal;
  }
};

/// This side's staging ring: checks what the peer has brought, has it put in place by this side's devices or
/// processor, and gives the room back, all in the order of arrival. The holder of progress alone; no driver
/// call.
class StagedIn {
 public:
  StagedIn(Context& context, OwnInbox& inbox, Outbox& outbox, device::Engines& engines, Channel& channel);

  /// Makes the ring. kProtocol: a second time.
  Status OnWantStage(const WantStage& request);

  /// kProtocol: the bytes are not where a peer may put some, or there are more records than windows allow.
  Status AddPut(const PutRecord& record);
  /// Bytes for `offset` of region `local` of this side, or the reason why none come.
  Status AddData(const DataRecord& record, uint32_t local, uint64_t offset);
  /// The next record must be a signal.
  [[nodiscard]] bool awaits_signal() {
    return !arrivals_.empty() && arrivals_[arrivals_.tail() - 1].wants_signal();
  }
  void AddSignal(const SignalRecord& record);
  /// Puts in place what can be. True if anything was begun or refused.
  bool Place(Budget& budget);
  /// The oldest arrival if it is over; nullptr otherwise.
  const Arrival* Finished();
  void Pop();
  /// Gives the peer the room of what was popped.
  void Publish();
  /// Forgets what has arrived: the engines' fence stands for what is under way.
  void Clear();
  /// Pieces of writes.
  [[nodiscard]] size_t puts() const { return puts_; }
  [[nodiscard]] bool made() const { return ring_ != nullptr; }
  [[nodiscard]] Status health() const { return ring_ == nullptr ? Status::Ok() : ring_->failure(); }

 private:
  /// Windows of 128 writes and 32 reads, the pieces of one ring, and a record for each write that is given
  /// up.
  static constexpr size_t kMost = 512;
  enum class Step : uint8_t { kDone, kWaits };

  Status Add(Arrival arrival, bool bytes);
  [[nodiscard]] bool Locate(uint64_t position, uint64_t length) const;
  [[nodiscard]] Code Check(const Arrival& arrival, const LocalRegion* region) const;
  Step PlaceOne(Arrival& arrival, Budget& budget);
  Step CopyByDevice(Arrival& arrival, const LocalRegion& region);
  [[nodiscard]] bool Overlaps(const std::byte* to, uint64_t length);

  Context* context_;
  OwnInbox* inbox_;
  Outbox* outbox_;
  device::Engines* engines_;
  Channel* channel_;
  std::unique_ptr<StageRing> ring_;
  uint64_t arrived_ = 0;    ///< Position after the newest piece.
  uint64_t taken_ = 0;      ///< Position after the newest that was popped.
  uint64_t published_ = 0;  ///< What the peer knows of it.
  Ring<Arrival> arrivals_{kMost};
  uint32_t next_ = 0;  ///< Number of the first that is not in Place's past.
  size_t puts_ = 0;
  CopyBatch batch_;
};

}  // namespace weightcast::transport::shm
