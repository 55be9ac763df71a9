#pragma once

#include <cstdint>

#include "transport/shm/channel.h"
#include "transport/shm/fence.h"
#include "transport/shm/pull_checks.h"
#include "transport/shm/record_ring.h"
#include "transport/shm/shared_memory.h"

namespace weightcast::transport::shm {

/// The direction of a link that leads to the peer: its inbox and its fence page, seen from here. All of it
/// is the peer's: values are checked, never trusted.
class Outbox {
 public:
  /// `bell`: rings the peer; outlives this object.
  Outbox(Mapping inbox, Mapping fence, const Channel& bell)
      : inbox_(std::move(inbox)),
        fence_page_(std::move(fence)),
        bell_(&bell),
        records_(shared().records, shared().records_taken),
        fence_(shared().busy) {}

  [[nodiscard]] Inbox& shared() const { return *inbox_.As<Inbox>(); }

  // --- Fence: look at the peer's words only inside ---
  void Enter() { fence_.Enter(); }
  void Leave() {
    fence_.Leave();
    Wake(kWakeFence);
  }
  /// One copy of a device's: look at the peer's words between this and leaving the copy with the device.
  void BeginDevice() { shared().device_begun.store(++device_begun_, std::memory_order_seq_cst); }
  /// `count` copies are over: the oldest, or the one that was not left with the device after all.
  void EndDevice(uint64_t count = 1) {
    shared().device_ended.store(device_ended_ += count, std::memory_order_seq_cst);
    Wake(kWakeFence);
  }
  [[nodiscard]] bool GrantOpen(const GrantName& grant) const {
    const uint64_t expected = grant.slot == 0 ? kStandingOpen : grant.id;
    return shared().grant[grant.slot].load(std::memory_order_seq_cst) == expected;
  }
  [[nodiscard]] bool Live(const RegionName& region) const {
    const auto& generation = fence_page_.As<FencePage>()->generation[region.id];
    return generation.load(std::memory_order_seq_cst) == region.generation;
  }

  /// Whether a source of the peer's is still what it was when a copy of it was ordered: true after the copy
  /// was over means that every byte was read before the peer let go of it (docs/gpu.md).
  [[nodiscard]] bool SourceStands(const RegionName& source) const {
    return shm::SourceStands(shared().source_open, fence_page_.As<FencePage>()->generation[source.id],
                             source.generation);
  }

  /// How many peers of the peer have a grant of it.
  [[nodiscard]] uint64_t PeerWriters() const {
    return fence_page_.As<FencePage>()->writers.load(std::memory_order_relaxed);
  }

  // --- Records and payload ---
  [[nodiscard]] bool HasSpace(uint32_t count = 1) { return records_.HasSpace(count); }
  template <typename T>
  void Push(const T& record) {
    records_.Push(Pack(record));
    Wake(kWakeRecords);
  }
  void AttachPayload(Mapping payload) { payload_ = std::move(payload); }
  [[nodiscard]] bool has_payload() const { return payload_.valid(); }
  /// Room for `length` bytes in one run and its position; nullptr: none now. Taken by the next Commit.
  std::byte* Reserve(uint64_t length, uint64_t& position);
  void Commit(uint64_t position, uint64_t length) { payload_next_ = position + length; }
  [[nodiscard]] bool broken() const { return broken_ || records_.broken(); }

  /// Rings if the peer sleeps and wants to be woken for one of `bits`.
  void Wake(uint64_t bits) {
    Word& wake = shared().wake;
    if ((wake.load(std::memory_order_seq_cst) & bits) == 0) return;
    if (wake.exchange(0, std::memory_order_seq_cst) != 0) bell_->Ring();
  }

 private:
  Mapping inbox_;
  Mapping fence_page_;
  Mapping payload_;
  const Channel* bell_;
  RecordProducer records_;
  WriterFence fence_;
  uint64_t device_begun_ = 0;
  uint64_t device_ended_ = 0;
  uint64_t payload_next_ = 0;
  uint64_t payload_seen_ = 0;  ///< Last valid value of the peer's payload_taken.
  bool broken_ = false;
};

}  // namespace weightcast::transport::shm
