#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "endpoint/user_memory.h"
#include "p2p/messages.h"
#include "p2p/outbox.h"
#include "weightcast/clock.h"
#include "weightcast/endpoint.h"
#include "weightcast/settings.h"

// What an engine keeps; all guarded by its mutex.
namespace weightcast::p2p {

inline constexpr const char* kRole = "p2p";                    ///< Of an engine's identity.
inline constexpr uint64_t kSharedChannel = uint64_t{1} << 63;  ///< Its first number on the wire.
/// Looked at ten times a second by calls that wait: true ends them as kCancelled.
using Interrupted = std::function<bool()>;
inline constexpr Duration kGlance = std::chrono::milliseconds(100);  ///< Between two such looks.

struct Peer;
struct Channel;

/// Bytes of this process, inside a registered memory; memory 0: registered for this call alone. Memory of a
/// GPU is recognised by its address.
struct LocalSlice {
  uint64_t memory = 0;
  std::byte* address = nullptr;
  uint64_t length = 0;
};

/// Registered memory.
struct Memory {
  uint64_t id = 0;
  std::byte* address = nullptr;
  uint64_t length = 0;
  int device = -1;                 ///< Whose memory it is; -1: the host's.
  uint64_t identity = 0;           ///< Of an advertised one of a device: the driver's, of its allocation.
  std::shared_ptr<Region> region;  ///< Null from the moment at which it is deregistered.
  bool temporary = false;          ///< Of one operation.
  bool advertised = false;         ///< Registered because it was advertised.
};
using MemoryPtr = std::shared_ptr<Memory>;

/// What a LocalSlice is, while an operation uses it.
struct OwnSlice {
  MemoryPtr memory;
  uint64_t offset = 0;  ///< Within the memory.
  uint64_t length = 0;
};

enum class OperationKind { kSend, kReceive, kWrite, kRead };

/// send, recv, write or read, from the call until somebody has heard how it ended.
struct Operation {
  OperationKind kind{};
  std::shared_ptr<Channel> channel;
  uint64_t number = 0;  ///< Among those of its kind of its channel; reads and writes are one kind.
  std::vector<OwnSlice> parts;
  uint64_t bytes = 0;
  std::vector<std::shared_ptr<const DeviceEvent>> after;  ///< Its caller's streams: it begins behind them.
  size_t awaited = 0;                                     ///< Of these, how many are not over.
  uint64_t waits_as = 0;                                  ///< Its number among those that wait for streams.
  std::vector<Slice> remote;                              ///< Once known: the peer's memory.
  transport::GrantName grant;        ///< A receive's own, or the one under which a send writes.
  std::optional<Transfer> transfer;  ///< From its beginning on.
  Status reason;                     ///< Why it was cancelled.
  bool asked = false;                ///< One side has asked the other how the receive of this number ended.
  bool ending = false;               ///< A receive whose grant is being revoked.
  bool ended = false;
  uint64_t polled = 0;  ///< In which round of polls.
  Status outcome;
  TimePoint limit = TimePoint::max();  ///< Nobody waits longer for what a stopped peer may still touch.
  std::vector<std::shared_ptr<Region>> retired;  ///< Of this call alone; to be closed without the mutex.

  /// Of what may wait for the peer, or for a device: on the thread that was told of the end, without the
  /// mutex.
  void LetGo() {
    retired.clear();
    after.clear();
  }
};
using OperationPtr = std::shared_ptr<Operation>;

/// One end of a channel. A closed one is in no table any more.
struct Channel {
  uint64_t id = 0;    ///< The script's.
  uint64_t wire = 0;  ///< Both engines'.
  std::shared_ptr<Peer> peer;
  Gpu gpu;        ///< The peer's.
  Status status;  ///< Why it is closed.
  uint64_t sends = 0;
  uint64_t receives = 0;
  uint64_t one_sideds = 0;
  uint32_t granted = 0;                        ///< Receives that hold a grant.
  std::map<uint64_t, OperationPtr> sending;    ///< All sends that have not ended.
  std::map<uint64_t, OperationPtr> receiving;  ///< All receives that have not ended.
  std::map<uint64_t, OperationPtr> one_sided;  ///< All reads and writes that have not ended.
  /// The peer's receives for which no send was called yet; a reason: they have ended already.
  struct Offered {
    Offer offer;
    Status reason;
  };
  std::map<uint64_t, Offered> offers;
  std::map<uint64_t, Status>
      abandoned;  ///< The peer's sends that will not come, before a receive was called.
};
using ChannelPtr = std::shared_ptr<Channel>;

/// Another engine, as long as the connection to it exists.
struct Peer {
  explicit Peer(Connection to) : connection(std::move(to)) {}

  /// A memory of the peer.
  struct Import {
    bool asked = false;  ///< Its description is on its way.
    Status reason;       ///< Why it cannot be used.
    std::optional<RemoteRegion> region;
  };

  Connection connection;
  uint64_t opened = 0;                      ///< Channels, by us.
  bool lower = false;                       ///< Ours is the smaller incarnation.
  Status lost;                              ///< Why the connection has ended.
  std::map<uint64_t, ChannelPtr> channels;  ///< By their number on the wire.
  std::map<uint64_t, Import> imports;
  std::set<uint64_t> told;                 ///< Memories of ours that it has been described.
  size_t offered = 0;                      ///< Slices in its offers that wait for a send.
  uint64_t shared_generation = 0;          ///< How often the shared channel was closed.
  std::deque<OperationPtr> without_grant;  ///< Receives that wait for one, in order.
  std::vector<OperationPtr> describing;    ///< Operations that wait for descriptions.
};
using PeerPtr = std::shared_ptr<Peer>;

/// For messages: "the p2p endpoint of rank 0 at 10.0.0.1:29760".
std::string NameOf(const Peer& peer);

/// The tables of an engine.
struct State {
  State(const Settings& settings, std::function<Result<StreamRef>(int device)> streams)
      : job(settings.job), lease(settings.lease), stream_of(std::move(streams)), user_memory(settings) {}

  /// A message goes out as soon as the peer has room for it.
  void Send(const Peer& peer, const Message& message);
  /// By the script's number; not ok: there is none, or why it is closed.
  [[nodiscard]] Result<ChannelPtr> Usable(uint64_t channel) const;

  const std::string job;
  const Duration lease;
  const std::function<Result<StreamRef>(int device)> stream_of;  ///< As EngineOptions.
  endpoint::UserMemory user_memory;
  std::unique_ptr<Endpoint> endpoint;
  Outbox outbox;

  mutable std::mutex mutex;         ///< Guards all below.
  std::condition_variable changed;  ///< Operations that ended or began to move, channels to accept.
  std::map<Incarnation, PeerPtr> peers;
  std::map<uint64_t, ChannelPtr> channels;
  std::map<uint64_t, MemoryPtr> memories;
  std::map<uint64_t, OperationPtr> operations;
  std::map<uint64_t, OperationPtr> awaiting;  ///< Those that wait for streams.
  std::deque<ChannelPtr> to_accept;
};

}  // namespace weightcast::p2p
