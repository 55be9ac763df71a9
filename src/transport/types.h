#pragma once

#include <cstdint>
#include <variant>

#include "memory/memory.h"
#include "weightcast/clock.h"
#include "weightcast/device.h"
#include "weightcast/grant.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::transport {

/// A connection to one peer over one transport. Chosen by the caller, unique in its endpoint, never 0.
enum class LinkId : uint32_t {};

using weightcast::DeviceEvent;
using weightcast::GrantName;
using weightcast::kGrantSlots;

/// The mark that one chunk of a transfer has landed. Idempotent: setting it twice is setting it once.
struct Signal {
  GrantName grant;
  uint32_t transfer = 0;
  uint32_t chunk = 0;
  uint32_t chunks = 0;    ///< How many the transfer has: the same in each of its signals.
  uint64_t checksum = 0;  ///< XXH64 of the chunk's bytes in order, or 0: not computed.
};

/// A peer's region after Import.
enum class RemoteRegion : uint32_t {};

enum class OpKind : uint8_t { kWrite, kRead, kSignal };

/// One contiguous one-sided operation. kWrite may carry a signal; it is set at the target after all bytes
/// of this operation, and of those before it on the same lane, have landed there.
///
/// A signal stands for the writes under its grant on its lane since the signal before it, or since the
/// operation that is marked `first`. If one of them was refused (wherever that was found), the signal is
/// withheld and its operation completes with the same code. What was refused earlier is forgotten.
struct Op {
  OpKind kind = OpKind::kWrite;
  bool has_signal = false;
  bool first = false;  ///< kWrite, kSignal: a new signal's writes begin here.
  uint32_t local = 0;  ///< Id of a local region.
  uint64_t local_offset = 0;
  RemoteRegion remote{};
  uint64_t remote_offset = 0;
  uint64_t length = 0;
  GrantName grant;
  Signal signal;
  uint64_t cookie = 0;
  const DeviceEvent* after = nullptr;
};

/// Exactly one for each operation taken. The source is the caller's again.
struct Completion {
  LinkId link{};
  uint64_t cookie = 0;
  Code code = Code::kOk;
};
/// A peer's signal under an open grant (the transport drops stale ones).
struct SignalArrived {
  LinkId link{};
  Signal signal;
};
struct LinkReady {
  LinkId link{};
  uint32_t lanes = 1;
};
/// This lane takes no more operations until LaneUp. Those it had taken have completed, or will as
/// kUnavailable as soon as it is certain that nothing of them can land any more: only then may their bytes be
/// sent elsewhere.
struct LaneDown {
  LinkId link{};
  uint32_t lane = 0;
  Status reason;
};
/// This lane takes operations again: a transport may open another path in the place of one that failed. All
/// that the old one had taken has completed.
struct LaneUp {
  LinkId link{};
  uint32_t lane = 0;
};
/// Could not be established, or its last lane went down.
struct LinkDown {
  LinkId link{};
  Status reason;
};
/// After Revoke: nothing of this grant can land any more.
struct Revoked {
  LinkId link{};
  GrantName grant;
};
/// After CloseLink: nothing of this link can land any more, and its id is free.
struct LinkClosed {
  LinkId link{};
};
/// After Deregister: no peer reads or writes this region any more; its memory may be freed.
struct Deregistered {
  uint32_t region = 0;
};
using Event = std::variant<Completion, SignalArrived, LinkReady, LaneDown, LaneUp, LinkDown, Revoked,
                           LinkClosed, Deregistered>;

/// Of one operation between memories of one kind.
struct Limits {
  uint64_t max_length = 0;
  uint64_t at_once = 64 << 10;  ///< Up to here a caller had better post itself than wake another thread.
};

struct TransportOptions {
  Settings settings;
  Incarnation self = 0;
};

/// Which side speaks first; the initiator's endpoint connected the handshake.
enum class Role : uint8_t { kInitiator, kResponder };

}  // namespace weightcast::transport
