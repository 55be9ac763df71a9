#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "transport/verbs/address.h"
#include "transport/verbs/messages.h"
#include "transport/verbs/nic.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

/// One reliable queue pair on one NIC, from INIT to its destruction. Destroying it is a fence: afterwards
/// nothing lands through it here and nothing of ours is read by the device. Belongs to the holder of
/// progress.
///
/// Work requests are added one by one and posted in one linked list by Flush, the last one signalled; each
/// has a number, one more than the one before it.
class Queue {
 public:
  /// `depth`: work requests under way at once. kExhausted: the NIC has no room for one more.
  static Result<std::unique_ptr<Queue>> Create(Nic& nic, uint32_t depth);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue();

  [[nodiscard]] QueueName name() const { return {queue_->qp_num, psn_}; }
  [[nodiscard]] Nic& nic() const { return nic_; }
  /// Its completions go there; before anything is added.
  void SetOwner(QueueOwner& owner) { nic_.queues().SetOwner(queue_->qp_num, id_, owner); }
  /// Stops and destroys it, and first hands to its owner what it has received: the peer may know already that
  /// this has arrived. Not from inside a completion.
  void Retire();
  /// Ready to receive and to send.
  Status Connect(const Address& peer, const QueueName& name, const Settings& settings);

  /// One operation's next may be added: a write or read, and a message behind it.
  [[nodiscard]] bool HasRoom() const {
    return under_way() + 1 < depth_ && (under_way() == 0 || nic_.completions().room() > 1);
  }
  [[nodiscard]] uint32_t under_way() const { return added_ - done_; }
  /// The number that the next one will have, and the first that has not completed.
  [[nodiscard]] uint32_t next() const { return added_; }
  [[nodiscard]] uint32_t done() const { return done_; }

  struct Place {
    uint64_t local = 0;  ///< Address.
    uint32_t lkey = 0;
    uint64_t remote = 0;
    uint32_t rkey = 0;
    uint32_t length = 0;
    bool device = false;  ///< `local` is device memory, which the processor cannot read.
  };
  void AddWrite(const Place& place) { Add(place, IBV_WR_RDMA_WRITE); }
  void AddWrite(const Place& place, uint32_t immediate);
  void AddRead(const Place& place) { Add(place, IBV_WR_RDMA_READ); }
  void AddMessage(const MessageBytes& message);
  /// Posts what was added. Not ok: the queue pair is broken, and what was added is lost with it.
  Status Flush();

  /// One has failed: those behind it are flushed, and say nothing new. False: that is known already.
  bool Fail() { return !std::exchange(failed_, true); }
  /// All up to this number have completed.
  void Complete(uint32_t sequence);

 private:
  /// Entries of the completion queue that are its own, for a write and a message behind it: whatever others
  /// have under way, it goes on.
  static constexpr uint32_t kOwn = 2;
  static constexpr uint32_t kBatch = 32;
  /// Signalled at least so often, so that the send queue is freed in parts.
  static constexpr uint32_t kSignalEvery = 16;
  /// Those of this length each: the completion is nothing beside it, and shows that bytes move.
  static constexpr uint32_t kLong = 256U << 10;

  Queue(Nic& nic, uint32_t depth) : nic_(nic), depth_(depth) {}
  /// How many entries of the completion queue it has besides.
  [[nodiscard]] uint32_t beyond_own() const { return under_way() > kOwn ? under_way() - kOwn : 0; }
  /// Into the error state: nothing lands through it any more.
  bool Stop();
  void Destroy();
  ibv_send_wr& Add(const Place& place, ibv_wr_opcode opcode);
  Status ToInit();
  [[nodiscard]] Result<ibv_ah_attr> Path(const Address& peer, const Settings& settings) const;

  Nic& nic_;
  ibv_qp* queue_ = nullptr;
  uint32_t psn_ = 0;
  uint32_t id_ = 0;  ///< Of the NIC.
  uint32_t depth_;
  uint32_t inline_bytes_ = 0;
  uint32_t added_ = 0;
  uint32_t done_ = 0;
  uint32_t batched_ = 0;
  bool failed_ = false;
  Status broken_;  ///< Why a list could not be posted.
  std::array<ibv_send_wr, kBatch> requests_{};
  std::array<ibv_sge, kBatch> places_{};
  std::array<MessageBytes, kBatch> messages_{};
};

/// enum of the time-out with which a queue pair gives up after about a quarter of the lease.
uint8_t TimeoutFor(const Settings& settings);

}  // namespace weightcast::transport::verbs
