#pragma once

#include <cstdint>

#include "transport/event_queue.h"
#include "transport/refusals.h"
#include "transport/ring.h"
#include "transport/types.h"
#include "transport/verbs/local_region.h"
#include "transport/verbs/peer_regions.h"

namespace weightcast::transport::verbs {

/// One that a lane has taken, and how far it is.
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

  /// Whether it is one, within its regions, and what their owners allow, but for grants. `imported`, here and
  /// below: what it names of the peer's; null for a signal alone, and here where there is no such import.
  [[nodiscard]] Code Check(const ImportedRegion* imported, size_t own_nic, size_t peer_nic) const;
  /// Bytes of its next work request.
  [[nodiscard]] uint64_t NextPiece(const ImportedRegion* imported) const;
};

/// The operations that one lane has taken, in their order. Each is told of once, in a Completion, and uses
/// its local region until then. Settled before it goes.
class Operations {
 public:
  Operations(LinkId link, Regions& regions, EventQueue& events);

  [[nodiscard]] bool empty() const { return ring_.empty(); }
  [[nodiscard]] bool HasRoom() const { return ring_.size() < kDepth; }
  void Push(const Op& op, LocalRegion* local);
  /// The first of which something is left to post. Null: none.
  [[nodiscard]] Operation* ToPost() { return to_post_ == ring_.tail() ? nullptr : &ring_[to_post_]; }
  /// That one is posted, as far as it will be.
  void OnPosted();

  // --- What is refused here; `done`: the number of the first work request that has not completed.
  /// That with which the writes of a new signal may begin.
  void BeginSignal(const Operation& operation);
  /// kOk, or why one of its writes was refused: then it stands for nothing.
  [[nodiscard]] Code EndSignal(const Operation& operation) { return refusals_.End(operation.signal.grant); }
  /// Nothing more of it is posted. What was still has to complete.
  void Refuse(Operation& operation, Code code, uint32_t done);

  // --- What has come of them
  void CompleteUpTo(uint32_t done);
  /// The first that has not completed is the one whose work request failed.
  void Blame(Code code);
  /// The queue pair is gone: completes what was never posted and cannot land any more. The rest waits for the
  /// peer.
  void EndUnposted();
  /// Completes what is left. `peer_alive`: else a refusal says nothing.
  void Settle(Code code, bool peer_alive);

 private:
  static constexpr uint32_t kDepth = 128;

  void Finish(Operation& operation, Code code);
  void RetireDone();

  const LinkId link_;
  Regions& regions_;
  EventQueue& events_;
  Ring<Operation> ring_{kDepth};
  uint32_t to_post_ = 0;
  Refusals refusals_;
};

}  // namespace weightcast::transport::verbs
