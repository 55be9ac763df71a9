#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "transport/shm/fence.h"
#include "transport/shm/pull_checks.h"
#include "transport/shm/record_ring.h"
#include "transport/shm/shared_memory.h"
#include "transport/write_ranges.h"
#include "weightcast/status.h"

namespace weightcast::transport::shm {

/// The direction of a link that leads here: ours to own, the peer's to write into. What is open is kept
/// twice: in the shared words for the writer, and here, where no peer can change it.
class OwnInbox {
 public:
  /// kExhausted when memory or descriptors do not suffice.
  static Result<OwnInbox> Create();

  [[nodiscard]] int fd() const { return pages_.fd.get(); }
  [[nodiscard]] Inbox& shared() const { return *pages_.mapping.As<Inbox>(); }
  /// The peer has it: the descriptor is needed no more.
  void CloseFd() { pages_.fd.reset(); }

  // --- Grants ---
  /// Lets the peer in: the standing grant counts from now on.
  void Open();
  /// kInvalidArgument for a name that is none; kExhausted while the slot is in use.
  Status OpenGrant(const GrantName& grant, GrantReach ranges);
  /// Forbids it; false if it was not open. The slot stays in use until FreeSlot.
  bool CloseGrant(const GrantName& grant);
  void FreeSlot(uint32_t slot);
  /// How many are open.
  [[nodiscard]] size_t grants() const { return grants_; }
  /// Forbids everything.
  void CloseAll();
  [[nodiscard]] bool IsOpen(uint32_t slot, uint64_t id) const {
    if (slot == 0) return id == 0 && standing_;
    return slot < kGrantSlots && id != 0 && open_[slot] == id;
  }
  /// Of an open slot: whether its grant opens these bytes.
  [[nodiscard]] bool Covers(uint32_t slot, uint32_t region, uint32_t generation, uint64_t offset,
                            uint64_t length) const {
    return ranges_[slot] == nullptr || ranges_[slot]->Cover(region, generation, offset, length);
  }
  [[nodiscard]] FenceWait Fence() const { return FenceWait(shared().busy); }
  [[nodiscard]] DeviceFenceWait DeviceFence() const { return DeviceFenceWait(shared().device_begun); }

  /// Whether the peer may pull from our memory: closed before what was ordered of it is given back.
  void OpenSources() { shared().source_open.store(kSourcesOpen, std::memory_order_seq_cst); }
  void CloseSources() { CloseSource(shared().source_open); }

  // --- What arrives ---
  RecordConsumer& records() { return records_; }
  /// Makes the payload ring if there is none yet; its descriptor.
  Result<int> EnsurePayload();
  void ClosePayloadFd() { payload_.fd.reset(); }
  [[nodiscard]] bool has_payload() const { return payload_.mapping.valid(); }
  /// Where the peer has put `length` bytes; nullptr where that cannot be, now or ever.
  [[nodiscard]] const std::byte* Payload(uint64_t position, uint64_t length) const;
  /// The bytes before `end` are used up.
  void TakePayload(uint64_t end) { payload_taken_ = end; }
  /// Gives the room of what was taken back, records and payload; true if there was any.
  bool Publish();

 private:
  explicit OwnInbox(SharedPages pages);

  SharedPages pages_;
  SharedPages payload_;
  RecordConsumer records_;
  std::array<uint64_t, kGrantSlots> open_{};
  std::array<GrantReach, kGrantSlots> ranges_;
  std::array<bool, kGrantSlots> in_use_{};
  bool standing_ = false;
  size_t grants_ = 0;
  uint64_t payload_taken_ = 0;
  uint64_t payload_published_ = 0;
};

}  // namespace weightcast::transport::shm
