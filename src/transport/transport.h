#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "memory/memory.h"
#include "transport/types.h"
#include "transport/write_ranges.h"
#include "weightcast/status.h"

namespace weightcast::transport {

/// One kind of path between endpoints: sockets, shared memory, queue pairs, copy engines.
///
/// Life of a link, the same on both sides (the endpoint carries the blobs over its own, proven
/// channel; what a blob holds is the transport's secret):
///
///     initiator                                 responder
///     OpenLink(id) -> offer        --offer-->   OpenLink(id) -> answer (given the offer)
///     Establish(id, answer)       <--answer--
///     ... Progress ... LinkReady or LinkDown    ... Progress ... LinkReady or LinkDown
///     Post / events                             Post / events
///     CloseLink(id) -> LinkClosed               CloseLink(id) -> LinkClosed
///
/// A transport that depends on the peer being near (shared memory, peer GPU) proves it inside
/// this exchange by writing and reading a nonce; where that fails LinkDown says why.
///
/// Every operation that Post takes gives exactly one Completion, also when its lane, its link or the
/// peer dies. Operations complete in any order. A lane that fails gives LaneDown; what it held completes as
/// kUnavailable, its bytes written or not, once nothing of it can land any more, or when the link goes down;
/// the endpoint sends it again on another lane. Signals are sets: twice is harmless. A lane may come back
/// (LaneUp), under the same number.
///
/// Writes under a grant land only while the target holds it open. After Revoke the event Revoked comes
/// as soon as it is certain that nothing of that grant can land any more: at once, after the
/// copy in progress, or when the writer's death is proven. It may never come while a writer is stopped.
///
/// Threads: Register, Deregister and Import may be called from any thread. Everything else belongs to
/// the one thread that drives progress at that time; the endpoint hands this role around.
/// Nothing here blocks. Between Arm() and the descriptor's becoming readable nothing needs Progress.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual Limits LimitsOf(MemoryKind kind) const = 0;

  // --- Memory ------------------------------------------------------------------------------
  /// Makes `memory` usable under `name` (an id of this process, not in use). Populates its pages. The
  /// memory must stay valid until Deregistered. Returns the key that a peer's Import needs.
  virtual Result<std::string> Register(const RegionName& name, const DescribedMemory& memory,
                                       Access access) = 0;
  /// Refuses the region from now on; Deregistered follows once no peer can touch it.
  virtual void Deregister(uint32_t region) = 0;
  /// Makes a peer's region usable in operations on this link. May finish in the background: until then
  /// Post takes no operation on it. An import that fails shows as kPermission or kOutOfBounds of the
  /// operations. Valid until the link closes.
  virtual Result<RemoteRegion> Import(LinkId link, const RegionName& name, uint64_t length,
                                      std::string_view key) = 0;
  /// Forgets an imported region that has no operation in flight.
  virtual void Release(LinkId link, RemoteRegion region) = 0;

  // --- Links -------------------------------------------------------------------------------
  /// `offer` is empty for the initiator. Returns the blob for the peer; kUnavailable where this
  /// transport cannot serve this peer.
  virtual Result<std::string> OpenLink(LinkId link, Role role, Incarnation peer, std::string_view offer,
                                       TimePoint deadline) = 0;
  /// Initiator only: the responder's answer.
  virtual Status Establish(LinkId link, std::string_view answer) = 0;
  /// Ends the link; its operations complete as kCancelled or as they really went. LinkClosed follows.
  virtual void CloseLink(LinkId link) = 0;
  /// One line for a person: "shm: mapped memory and cross-process copy, pid 4711".
  [[nodiscard]] virtual std::string Describe(LinkId link) const = 0;

  // --- Grants, at the target ----------------------------------------------------------------
  /// Lets the peer write under this grant, only into `ranges` unless null. Whoever lets the bytes into place
  /// looks at the ranges, where that is this process; a path on which the peer writes by itself (mapped
  /// memory, cross-process copy, a queue pair) is bounded by the region. kExhausted when the slot is in use.
  virtual Status OpenGrant(LinkId link, const GrantName& grant, GrantReach ranges) = 0;
  virtual void Revoke(LinkId link, const GrantName& grant) = 0;

  // --- Operations ---------------------------------------------------------------------------
  /// Takes operations from the front of `ops` and says how many; fewer than all means: full, poll first.
  virtual size_t Post(LinkId link, uint32_t lane, std::span<const Op> ops) = 0;
  struct Progressed {
    size_t events = 0;   ///< How many of `out` were filled.
    bool moved = false;  ///< Bytes were moved, or anything else done: whoever drives goes on.
  };
  /// Moves bytes and fills `out` with events. Neither, when there was nothing to do.
  virtual Progressed Progress(std::span<Event> out) = 0;
  /// The events that are there already: moves nothing, looks at no peer. What Post completed at once is found
  /// so without a turn of everything, also while armed. None: a transport whose Post completes nothing.
  virtual size_t Reap(std::span<Event> out) {
    (void)out;
    return 0;
  }

  // --- Sleeping -----------------------------------------------------------------------------
  /// Becomes readable when Progress may have something to do; level-triggered, for epoll.
  [[nodiscard]] virtual int fd() const = 0;
  /// Call before sleeping: false means that there is work now. Asks peers to ring.
  virtual bool Arm() = 0;
  /// Call after waking.
  virtual void Disarm() = 0;
  /// To arm and disarm it takes system calls, and bytes land here without this process: callers who come
  /// again and again had better leave it unarmed meanwhile.
  [[nodiscard]] virtual bool ArmingIsCostly() const { return false; }
};

/// A transport as builtin.cc lists it: best first.
struct TransportFactory {
  std::string_view name;
  Result<std::unique_ptr<Transport>> (*create)(const TransportOptions&);
};
std::span<const TransportFactory> BuiltinTransports();

}  // namespace weightcast::transport
