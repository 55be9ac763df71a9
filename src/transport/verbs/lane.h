#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "transport/refusals.h"
#include "transport/ring.h"
#include "transport/verbs/immediate.h"
#include "transport/verbs/queue.h"
#include "transport/verbs/queue_events.h"
#include "transport/verbs/regions.h"

namespace weightcast::transport::verbs {

class LinkState;

/// One data queue pair's traffic: our operations posted and completed, the peer's signals taken. Without a
/// queue pair it is down and takes nothing.
class Lane final : private QueueOwner {
 public:
  /// `queue`: its number among the link's queue pairs; `peer_nic`: where the peer's end is.
  Lane(LinkState& link, QueueEvents& events, uint32_t queue, uint8_t peer_nic);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() override;

  /// Sends the probe, if there is one. Operations are taken from Open on.
  void Begin(std::unique_ptr<Queue> queue, std::optional<Probe> probe);
  void Open() { open_ = queue_ != nullptr; }
  [[nodiscard]] bool open() const { return open_; }
  [[nodiscard]] bool has_queue() const { return queue_ != nullptr; }

  /// Work requests of its queue pair: an operation may need several, and a signal one more.
  static constexpr uint32_t kRequests = 128;

  [[nodiscard]] bool HasRoom() const { return open_ && operations_.size() < kDepth; }
  void Push(const Op& op);
  /// Posts what can be posted. A broken queue pair is told to the host.
  void Pump();

  /// Nothing lands through it here, and it sends nothing, from here on. LaneDown if it was open.
  void Break(const Status& reason);
  /// The peer's end is gone as well: completes what is left. `peer_alive`: it said so itself.
  void Settle(Code code, bool peer_alive);
  /// Both, without LaneDown.
  void Close(Code code);

  /// For a fence: all that has been posted until now.
  [[nodiscard]] uint32_t posted() const { return queue_ == nullptr ? 0 : queue_->next(); }
  /// It has completed, or was never posted.
  [[nodiscard]] bool HasDone(uint32_t posted) const {
    return queue_ == nullptr ? operations_.empty() : static_cast<int32_t>(queue_->done() - posted) >= 0;
  }

 private:
  /// Operations taken and not completed.
  static constexpr uint32_t kDepth = 128;
  /// Of one work request: long enough to cost nothing, short enough to see progress and to be fenced soon.
  static constexpr uint64_t kLongest = 1U << 20;
  /// At the device at once: keeps 400 Gb/s busy over 80 us, and a fence waits for no more.
  static constexpr uint64_t kUnderWay = 4U << 20;

  struct Operation {
    OpKind kind = OpKind::kWrite;
    bool has_signal = false;
    bool first = false;
    bool posted = false;  ///< Wholly, or as far as it will be.
    bool done = false;    ///< Its completion has been told.
    Code code = Code::kOk;
    LocalRegion* local = nullptr;
    uint64_t local_offset = 0;
    RemoteRegion remote{};
    uint64_t remote_offset = 0;
    uint64_t length = 0;
    uint64_t begun = 0;       ///< Bytes posted.
    uint32_t after_last = 0;  ///< The number after its last work request.
    bool any_posted = false;
    GrantName grant;
    Signal signal;
    uint64_t cookie = 0;
    const DeviceEvent* after = nullptr;
  };
  enum class Verdict : uint8_t { kPosted, kWait };

  // QueueOwner
  void OnSent(uint32_t sequence) override;
  void OnSendError(uint32_t sequence, Code code, std::string_view reason) override;
  void OnMessage(std::string_view bytes) override;
  void OnImmediate(uint32_t bits) override;
  void OnBroken(Status reason) override;

  void DestroyQueue();
  Verdict PumpOne(Operation& operation);
  /// `remote`, here and below: what the operation names of the peer's; null for a signal alone, and in Judge
  /// where there is no such import. nullopt: the peer must be asked first.
  [[nodiscard]] std::optional<Code> Judge(const Operation& operation, const ImportedRegion* remote) const;
  [[nodiscard]] Code JudgeWrite(const Operation& operation, const ImportedRegion& remote) const;
  /// Bytes of its next work request.
  [[nodiscard]] static uint64_t NextPiece(const Operation& operation, const ImportedRegion* remote);
  void PostPiece(Operation& operation, const ImportedRegion* remote, uint64_t length);
  void PostSignal(const Operation& operation, const Queue::Place& place);
  void Refuse(Operation& operation, Code code);
  void Finish(Operation& operation, Code code);
  void RetireDone();
  void CompleteUpTo(uint32_t sequence);
  void Arrive(Lease lease, uint32_t transfer, uint32_t chunk, uint32_t chunks, uint64_t checksum);
  void Violation(std::string_view what);

  LinkState& link_;
  QueueEvents& events_;
  uint32_t number_;  ///< Of its queue pair in the link.
  uint8_t peer_nic_;
  std::unique_ptr<Queue> queue_;
  bool open_ = false;
  bool probing_ = false;
  Ring<Operation> operations_;
  uint32_t next_to_post_ = 0;
  Ring<uint32_t> lengths_;  ///< Of the work requests under way.
  uint64_t under_way_ = 0;
  Refusals refusals_;
};

}  // namespace weightcast::transport::verbs
