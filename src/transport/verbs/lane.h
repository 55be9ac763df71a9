#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "transport/ring.h"
#include "transport/verbs/operations.h"
#include "transport/verbs/peer_regions.h"
#include "transport/verbs/queue.h"
#include "transport/verbs/queue_events.h"

namespace weightcast::transport::verbs {

class LinkState;

/// One data queue pair's traffic: our operations posted and completed, the peer's signals taken. Without a
/// queue pair it is down and takes nothing. Closed before it goes.
class Lane final : private QueueOwner {
 public:
  /// `queue`: its number among the link's queue pairs; `peer_nic`: where the peer's end is.
  Lane(LinkState& link, QueueEvents& events, uint32_t queue, uint8_t peer_nic);

  /// Sends the probe, if there is one. Operations are taken from Open on.
  void Begin(std::unique_ptr<Queue> queue, std::optional<Probe> probe);
  void Open() { open_ = queue_ != nullptr; }
  [[nodiscard]] bool open() const { return open_; }
  [[nodiscard]] bool has_queue() const { return queue_ != nullptr; }

  /// Work requests of its queue pair: an operation may need several, and a signal one more.
  static constexpr uint32_t kRequests = 128;

  [[nodiscard]] bool HasRoom() const { return open_ && operations_.HasRoom(); }
  void Push(const Op& op);
  /// Posts what can be posted. A broken queue pair is told to the host.
  void Pump();

  /// Nothing lands through it here, and it sends nothing, from here on. LaneDown if it was open.
  void Break(const Status& reason);
  /// The peer's end is gone as well: completes what is left. `peer_alive`: it said so itself.
  void Settle(Code code, bool peer_alive) { operations_.Settle(code, peer_alive); }
  /// Both, without LaneDown.
  void Close(Code code);

  /// For a fence: all that has been posted until now.
  [[nodiscard]] uint32_t posted() const { return queue_ == nullptr ? 0 : queue_->next(); }
  /// It has completed, or was never posted.
  [[nodiscard]] bool HasDone(uint32_t posted) const {
    return queue_ == nullptr ? operations_.empty() : static_cast<int32_t>(queue_->done() - posted) >= 0;
  }

 private:
  /// At the device at once: keeps 400 Gb/s busy over 80 us, and a fence waits for no more.
  static constexpr uint64_t kUnderWay = 4U << 20;

  enum class Verdict : uint8_t { kPosted, kWait };

  // QueueOwner
  void OnSent(uint32_t sequence) override;
  void OnSendError(uint32_t sequence, Code code, std::string_view reason) override;
  void OnMessage(std::string_view bytes) override;
  void OnImmediate(uint32_t bits) override;
  void OnBroken(Status reason) override;

  void DestroyQueue();
  Verdict PumpOne(Operation& operation);
  /// `imported`, here and below: what the operation names of the peer's, as in Operation. nullopt: the peer
  /// must be asked first.
  [[nodiscard]] std::optional<Code> Judge(const Operation& operation, const ImportedRegion* imported) const;
  void PostPiece(Operation& operation, const ImportedRegion* imported, uint64_t length);
  void PostSignal(const Operation& operation, const Queue::Place& place);
  void CompleteUpTo(uint32_t sequence);
  void Arrive(Lease lease, uint32_t transfer, uint32_t chunk, uint32_t chunks, uint64_t checksum);

  LinkState& link_;
  QueueEvents& events_;
  uint32_t number_;  ///< Of its queue pair in the link.
  uint8_t peer_nic_;
  bool open_ = false;
  bool probing_ = false;
  Operations operations_;
  Ring<uint32_t> lengths_{kRequests};  ///< Of the work requests under way.
  uint64_t under_way_ = 0;
  std::unique_ptr<Queue> queue_;
};

}  // namespace weightcast::transport::verbs
