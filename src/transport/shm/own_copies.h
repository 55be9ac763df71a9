#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "transport/ring.h"
#include "transport/shm/gathered_copies.h"
#include "transport/shm/send_queue.h"

namespace weightcast::transport::shm {

/// What this side's own device copies: writes to the peer's open device memory (push) and reads (reach). Both
/// need nothing of the peer's processor. Operations that stand one behind the other go as one batch. The peer
/// cannot end a copy into its memory, so it must be able to wait for it: docs/gpu.md, "Push".
class OwnCopies : public QueueWorker {
 public:
  /// What copies of an operation go between; `source` is `region` as this side's device has it mapped.
  struct Ends {
    const LocalRegion* local = nullptr;
    const PeerRegion* region = nullptr;
    const Source* source = nullptr;
  };
  OwnCopies(LinkId link, Context& context, Outbox& outbox, const SenderDevices& devices, SendQueue& queue)
      : QueueWorker(link, context, outbox, queue), devices_(devices) {}

  /// Which of the two the operation is; nullopt: neither.
  [[nodiscard]] static std::optional<Path> PathOf(const Op& op, const PeerRegion& region,
                                                  const LocalRegion& local);
  /// Leaves pieces of the front operation, and of those behind it that go the same way, with the device.
  /// `refused`: set to why it cannot go on.
  Step Copy(Pending& front, Path path, const Ends& ends, Code& refused);
  /// Completes reads and pushes whose copies are over. True if there was one.
  bool Finish();
  /// Tells the peer which of this side's copies into its memory are over. In every state of the link.
  void EndPushes();

 private:
  static constexpr size_t kMostPushes = 64;  ///< Batches: of eight devices.
  /// The bytes that a copy writes.
  struct Range {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
  };
  struct PushedBatch {
    const device::Engine* engine = nullptr;
    uint64_t ticket = 0;
  };

  uint64_t Gather(GatheredCopies& batch, const device::Engine& engine, Path path, Ends ends);
  std::optional<Ends> Join(uint64_t index, Path path, const device::Engine& engine);
  void TakeUp(uint64_t end, const device::Engine& engine, uint64_t ticket, Path path);
  [[nodiscard]] bool FillsBatch();
  [[nodiscard]] static bool Inside(const Op& op, const Ends& ends);
  [[nodiscard]] static Range RangeOf(const Op& op, const Ends& ends);
  [[nodiscard]] bool Overlaps(uint64_t end, const Range& range);
  Step FinishPush(Pending& pending);
  [[nodiscard]] Code ReadOutcome(const Pending& pending) const;

  SenderDevices devices_;
  std::array<Range, SendQueue::kMost> ranges_;  ///< By number: all that are under way are looked through.
  Ring<PushedBatch> pushes_{kMostPushes};  ///< Batches of which the peer has not heard that they are over.
};

}  // namespace weightcast::transport::shm
