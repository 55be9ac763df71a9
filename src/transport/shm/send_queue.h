#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/engines.h"
#include "transport/shm/context.h"
#include "transport/shm/cross_copy.h"
#include "transport/shm/outbox.h"
#include "transport/shm/peer_life.h"
#include "transport/shm/records.h"
#include "transport/shm/source_maps.h"
#include "transport/shm/source_offers.h"
#include "transport/shm/staging.h"
#include "transport/types.h"

namespace weightcast::transport::shm {

/// Which paths a link has besides mapped memory, as found by trial and by refusals since.
struct Paths {
  CrossCopy copy;
  bool copy_writes = false;
  bool copy_reads = false;
  bool peer_reads = false;  ///< The peer copies out of this process, too.
  std::string refusal;      ///< Why a copy is not possible; empty where it is.
  /// Allowed before and no more: a filter or a limit came in between. `way`: one of the three above.
  void Refuse(bool& way) {
    way = false;
    refusal = "cross-process copy is not permitted any more";
  }
  bool ring_wanted = false;
  bool ring_ready = false;
  Code ring_failure = Code::kOk;
};

/// What a sender needs for device memory.
struct SenderDevices {
  device::Engines& engines;
  SourceOffers& offers;
  SourceMaps& sources;
  PeerLife life;
  Staging& staging;
};

/// The operations that this side has posted on one link, in the order of posting, from the taking to the
/// completion; and what their signals stand for. Before the front lie those that wait for the peer's answer
/// or for a copy.
class SendQueue {
 public:
  enum class Step : uint8_t { kDone, kStalled, kSpent };
  enum class Path : uint8_t { kMapped, kCopy, kRing, kPull, kReach, kPush, kStaged };
  struct Pending {
    Op op;
    uint64_t done = 0;      ///< Bytes moved; on the ring: bytes sent, or received.
    uint64_t sequence = 0;  ///< On the ring.
    uint32_t scope = 0;
    Path path = Path::kMapped;               ///< Of what waits for an answer or a copy.
    uint32_t records = 0;                    ///< Of a pull.
    const device::Engine* engine = nullptr;  ///< That reads or pushes; null: nothing was submitted.
    uint64_t ticket = 0;                     ///< Of its last batch.
    uint64_t gathered = 0;                   ///< Bytes in the batch that is gathered.
    bool checked = false;
    bool device = false;  ///< Device memory at one end at least.
    bool scoped = false;
    bool moved = false;     ///< Only the signal is left.
    Code code = Code::kOk;  ///< Known to fail, though not yet completed.
  };
  /// The writes that one signal stands for: those under its grant since the signal before. If one of them
  /// failed, the signal must not be set.
  struct Scope {
    uint64_t grant = 0;
    uint32_t number = 0;
    bool open = false;
    bool on_ring = false;  ///< The peer has seen a put of it.
    Code failure = Code::kOk;
  };

  SendQueue(LinkId link, Context& context, Outbox& outbox, const SenderDevices& devices)
      : link_(link), context_(&context), outbox_(&outbox), devices_(devices), queue_(kMost) {}

  /// Takes from the front of `ops`; how many.
  size_t Take(std::span<const Op> ops);
  /// Completes all that was taken; what devices copy once that is over, by Settle.
  void Fail(Code code);
  /// After Fail: completes what could not be completed then. True if there was anything.
  bool Settle();
  [[nodiscard]] bool failed() const { return failed_ != Code::kOk; }
  [[nodiscard]] bool empty() const { return head_ == tail_; }
  /// An operation waits for a device's event, of which no descriptor tells. Until ForgetWaits.
  [[nodiscard]] bool waits_for_device() const { return waits_for_device_; }
  void ForgetWaits() { waits_for_device_ = false; }

  /// Oldest not completed; next to run; the one after the newest.
  [[nodiscard]] uint64_t head() const { return head_; }
  [[nodiscard]] uint64_t next() const { return next_; }
  [[nodiscard]] uint64_t tail() const { return tail_; }
  Pending& At(uint64_t index) { return queue_[index % kMost]; }
  /// Some wait for an answer or a copy.
  [[nodiscard]] bool waiting() const { return head_ != next_; }
  /// Whether an operation may go on `path` beside those that wait.
  [[nodiscard]] bool Joins(Path path) { return !waiting() || At(next_ - 1).path == path; }

  /// Checks once; false while a device's event or the region's import is awaited.
  bool Begin(Pending& pending);
  void EnterScope(Pending& pending);
  Scope& ScopeOf(const Pending& pending) { return scopes_[pending.op.grant.slot]; }
  /// What the peer's words say now; call between Enter and Leave.
  [[nodiscard]] Code Admitted(const Op& op, const PeerRegion& region) const;
  /// Where a piece of the local side lies; nullptr when its region has gone.
  std::byte* LocalAt(const Pending& pending, uint64_t size);

  void Number(Pending& pending) { pending.sequence = next_sequence_++; }
  /// The front waits for its answer or its copy from here on.
  void Pass() { ++next_; }
  Step Conclude(Pending& pending);
  /// Completes the oldest, which is also the front unless that waits.
  void Complete(Code code);
  Step Refuse(Pending& pending, Code code);
  void NoteFailure(const Pending& pending, Code code);

  static constexpr uint64_t kMost = 256;  ///< Operations taken and not completed.

 private:
  [[nodiscard]] Code Check(Pending& pending) const;

  LinkId link_;
  Context* context_;
  Outbox* outbox_;
  SenderDevices devices_;
  std::vector<Pending> queue_;
  uint64_t head_ = 0;
  uint64_t next_ = 0;
  uint64_t tail_ = 0;
  uint64_t next_sequence_ = 1;
  bool waits_for_device_ = false;
  Code failed_ = Code::kOk;  ///< Everything completes so.
  std::array<Scope, kGrantSlots> scopes_;
};

/// What carries out operations of a queue on one link.
class QueueWorker {
 public:
  using Step = SendQueue::Step;
  using Path = SendQueue::Path;
  using Pending = SendQueue::Pending;

 protected:
  QueueWorker(LinkId link, Context& context, Outbox& outbox, SendQueue& queue)
      : link_(link), context_(&context), outbox_(&outbox), queue_(queue) {}

  LinkId link_;
  Context* context_;
  Outbox* outbox_;
  SendQueue& queue_;
};

}  // namespace weightcast::transport::shm
