#pragma once

#include <cstdint>

#include "transport/shm/direct_copies.h"
#include "transport/shm/own_copies.h"
#include "transport/shm/send_queue.h"

namespace weightcast::transport::shm {

/// Moves the bytes of the operations that this side has posted on one link, in the order of posting. Of host
/// memory there are four paths: mapped memory, cross-process copy by this side, the same by the peer on an
/// order, and the ring, where the peer does the second half of the copying and answers. Of device memory
/// there are four: writes under a grant are orders to the peer, whose device pulls; writes to open memory and
/// reads are copies by this side's device; what none of these can is staged. Before the path changes, what is
/// under way is waited for.
class Sender {
 public:
  Sender(LinkId link, Context& context, Outbox& outbox, Paths& paths, const SenderDevices& devices);

  /// Moves bytes while the budget lasts and nothing is in the way. True if anything was done.
  bool Run(Budget& budget);
  /// Answers of the peer; kProtocol when they make no sense.
  Status OnAnswer(const AnswerRecord& record);
  Status OnData(const DataRecord& record, const std::byte* bytes);
  Status OnStagedData(const DataRecord& record);
  /// A piece of the oldest read is in place, or not: `code`.
  void OnStagedPlaced(uint8_t flags, Code code);
  [[nodiscard]] SendQueue& queue() { return queue_; }
  [[nodiscard]] const SendQueue& queue() const { return queue_; }
  [[nodiscard]] OwnCopies& own() { return own_; }

 private:
  static constexpr uint64_t kRingWindow = 128;  ///< Operations on the ring that wait for an answer.
  static constexpr uint64_t kGetWindow = 32;    ///< The same of reads.
  static constexpr uint64_t kRingPiece = 128 * 1024;
  static constexpr uint64_t kLeastPull = 64 * 1024;  ///< A smaller one is copied before the peer is awake.
  using Step = SendQueue::Step;
  using Path = SendQueue::Path;
  using Pending = SendQueue::Pending;

  Step StepFront(Budget& budget);
  Step StepPath(Pending& pending, Budget& budget);
  Step StepRing(Pending& pending, const PeerRegion& region, Budget& budget);
  Step StepDevice(Pending& pending, const PeerRegion& region, Budget& budget);
  [[nodiscard]] bool PeerCopies(const Pending& pending);
  Step Pull(Pending& pending, const PeerRegion& region, const LocalRegion& local);
  Step Stage(Pending& pending, const PeerRegion& region, const LocalRegion& local, Budget& budget);
  Step StageWrite(Pending& pending, const PeerRegion& region, const LocalRegion& local, Budget& budget);
  [[nodiscard]] bool Awaits(const DataRecord& record);
  Step GiveUp(Pending& pending, Code code);
  /// The record of the next piece of a write that the peer puts in place, but for where its bytes are.
  /// EndPiece follows when it is out.
  PutRecord BeginPiece(Pending& pending, const PeerRegion& region, uint64_t size);
  Step EndPiece(Pending& pending, uint64_t size, uint8_t flags);
  Step Put(Pending& pending, const PeerRegion& region, Budget& budget);
  /// `flags`: of its record, kInStage or none.
  Step Get(Pending& pending, const PeerRegion& region, uint8_t flags);
  void Abandon(Pending& pending);

  LinkId link_;
  Context* context_;
  Outbox* outbox_;
  Paths* paths_;
  SenderDevices devices_;
  SendQueue queue_;
  DirectCopies direct_;
  OwnCopies own_;
  uint64_t arriving_ = 0;  ///< The staged read whose bytes come next, unless it lies before the oldest.
  uint32_t pulls_ = 0;     ///< Records without an answer.
};

}  // namespace weightcast::transport::shm
