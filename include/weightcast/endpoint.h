#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/clock.h"
#include "weightcast/device.h"
#include "weightcast/grant.h"
#include "weightcast/identity.h"
#include "weightcast/memory.h"
#include "weightcast/region.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "weightcast/transfer.h"

namespace weightcast {

class Endpoint;

/// How far a grant's transfers have come.
struct GrantProgress {
  uint32_t transfers_arrived = 0;
  uint32_t transfers_expected = 0;
  uint64_t chunks_arrived = 0;
  [[nodiscard]] bool complete() const { return transfers_arrived == transfers_expected; }
};

/// Bytes that a grant opens: `count` blocks, each as long as `first`, `stride` bytes after the one before.
struct GrantRange {
  LocalSlice first;
  uint64_t stride = 0;  ///< At least first.length() where there are several.
  uint64_t count = 1;
};

struct GrantOptions {
  uint32_t transfers = 0;  ///< Expected: numbers 0 .. transfers - 1.
  /// A transfer has wholly arrived. Must not block.
  std::function<void(uint32_t transfer, const GrantProgress&)> on_transfer{};
  /// A chunk has arrived for the first time, with the writer's checksum of it (XXH64 of its bytes in order,
  /// never 0; 0: the writer computed none). The target must know the transfer's pieces: a chunk is the next
  /// Connection::peer_chunk() of their bytes in a row, from at most 128 pieces. Before its transfer's
  /// on_transfer. Must not block.
  std::function<void(uint32_t transfer, uint32_t chunk, uint64_t checksum)> on_chunk{};
  /// In how many chunks transfers [first, first + count) come, as this side knows their pieces
  /// (peer_chunk()); a peer that says another number breaks the protocol. Unset: as the peer says. Must not
  /// block.
  std::function<uint64_t(uint32_t first, uint32_t count)> chunks{};
  /// All that the peer may write under it: wherever this process lets bytes into place, others are refused as
  /// kPermission (docs/wire.md, "What a grant opens"). Unset: every region that takes writes under grants.
  std::optional<std::vector<GrantRange>> ranges{};
};

/// One row of the connection map.
struct PeerInfo {
  Identity identity;
  std::string transport;    ///< "shm", "tcp"
  std::string description;  ///< Connection::Describe
};

/// An authenticated connection to one peer. Thread safe. Held by the endpoint too; Close ends it.
class Connection {
 public:
  class State;
  static constexpr size_t kMaxNotice = 32 << 10;  ///< Bytes.
  explicit Connection(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Both name the same connection.
  friend bool operator==(const Connection&, const Connection&) = default;

  [[nodiscard]] const Identity& peer() const;
  /// Bytes of the chunks that the peer cuts its transfers into; of transfers that go to device memory alone
  /// they are longer (docs/wire.md).
  [[nodiscard]] uint64_t peer_chunk() const;
  /// Where it listens: "10.0.0.1:4711", "[fd00::1]:4711".
  [[nodiscard]] const std::string& address() const;
  /// "shm (mapped memory), 1 lane, to trainer 0 at 10.0.0.1:4711".
  [[nodiscard]] std::string Describe() const;
  [[nodiscard]] std::string transport_name() const;
  /// That are up at this moment; 0 until a transport is chosen.
  [[nodiscard]] uint32_t lanes() const;
  /// Ok while usable; else why not: kPeerDead names the rank.
  [[nodiscard]] Status status() const;

  /// Makes a peer's region usable in transfers of this connection. The region descriptor came from outside:
  /// kProtocol if it is malformed, kInvalidArgument if it is another peer's.
  Result<RemoteRegion> Import(std::string_view descriptor);
  /// Forgets an import; transfers that use it go on. Later ones refuse its slices.
  void Release(const RemoteRegion& region);

  /// One asynchronous vectored transfer. Zero-length pieces are allowed; no pieces: ends at once (a
  /// signal is still set). Errors of the arguments come back here, all else through the Transfer.
  Result<Transfer> Write(std::span<const Piece> pieces, TransferOptions options);
  Result<Transfer> Read(std::span<const Piece> pieces, TransferOptions options);

  /// At the target: lets this peer write under the returned name until RevokeGrant.
  Result<GrantName> OpenGrant(GrantOptions options);
  /// Of a grant that has been revoked: never complete.
  [[nodiscard]] GrantProgress ProgressOf(const GrantName& grant) const;
  /// Waits, driving progress, until so many of the grant's transfers have wholly arrived: sooner than
  /// on_transfer, which another thread calls. kTimedOut at the deadline; kCancelled: the grant has been
  /// revoked, or never was; the reason if the connection has ended. Not from a callback.
  Status WaitGrant(const GrantName& grant, uint32_t transfers, TimePoint deadline);
  /// `fenced` is called once, when no byte of it can land any more; also when the grant, the link or the
  /// peer has ended already. Never called while a stopped writer might still write.
  void RevokeGrant(const GrantName& grant, std::function<void()> fenced);

  /// Sends the peer a message of at most kMaxNotice bytes, which it takes with TakeNotice. Notices of one
  /// connection arrive once and in the order of these calls, or the connection ends. One that is sent after a
  /// transfer of this connection was seen to have ended well is delivered after that transfer's bytes are in
  /// place at the peer (docs/wire.md says why, and what is not promised). Ok: it is on its way. kExhausted:
  /// the peer's application has not taken those before; nothing was sent.
  Status Notify(std::string_view bytes);
  /// The same, but waits until the peer has taken enough; kTimedOut at the deadline. Not from a callback.
  Status Notify(std::string_view bytes, TimePoint deadline);
  /// The peer's oldest notice that has not been taken yet; waits for one, driving progress. kTimedOut at the
  /// deadline (one that has passed: only looks). After the end of the connection what came before is still
  /// given, then the reason. Several takers: each notice goes to one of them. A queue to pull from, because
  /// only that can hold the sender back; EndpointOptions::on_notice tells an event loop when to look. From a
  /// callback only with a deadline that has passed.
  Result<std::string> TakeNotice(TimePoint deadline);

  /// Graceful shutdown. Transfers end as kCancelled; notices that are still in flight may be lost. Returns
  /// at once.
  void Close();

 private:
  std::shared_ptr<State> state_;
};

/// Where on_connection, on_disconnect, on_notice, on_transfer, on_chunk, on_end, OnEnd and `fenced` are
/// called: one after another, in the order of their causes. They must not block, and may call all that does
/// not wait.
enum class Callbacks : uint8_t {
  kOnThread,  ///< On the endpoint's progress thread.
  /// Inside Endpoint::Progress(), on the thread that calls it: for event loops. The endpoint's destructor
  /// calls those that still wait then.
  kInProgress,
};

struct EndpointOptions {
  Identity self;  ///< incarnation 0: a random one is made.
  /// Text of a master or role token. Empty: only with the setting `bind` on loopback.
  std::string token{};
  /// The key that a peer of this identity must have to connect here, in place of the token; default: the
  /// token for all. A handshake proves it and never sends it. Called on the progress thread; must not block.
  std::function<std::string(const Identity&)> key_of{};
  uint16_t port = 0;  ///< Where peers find it; 0: any of the setting `port_range`.
  Callbacks callbacks = Callbacks::kOnThread;
  Settings settings{};
  /// Called for each peer that has proven the token; default: accepts every peer of the same job. The error
  /// reaches the peer. Called on both sides of a connection, always on the progress thread; must not block.
  std::function<Status(const Identity&)> admit{};
  /// A connection that a peer opened is ready. Must not block. Like the two below it is dropped with the
  /// endpoint, so it may keep the connection.
  std::function<void(Connection)> on_connection{};
  /// A connection ended, with the reason. Must not block.
  std::function<void(const Identity&, const Status&)> on_disconnect{};
  /// A notice came where none waited: a hint to call TakeNotice until it gives no more. Not before the
  /// connection's on_connection. Must not block.
  std::function<void(Connection)> on_notice{};
  /// Looked at about ten times a second by a caller inside Connect, on its own thread: true ends that wait
  /// with kCancelled.
  std::function<bool()> interrupted{};
};

/// All connections of one process. Thread safe. It has one progress thread, which blocks when idle; callers
/// in Wait drive progress themselves when nobody else does. After fork() only the parent may use it
/// (calls in the child fail with kInternal).
class Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> Create(EndpointOptions options);
  /// Closes everything; bounded by the lease. Handles may outlive it: their calls then fail.
  virtual ~Endpoint() = default;

  [[nodiscard]] virtual const Identity& self() const = 0;
  /// "host:port" of each usable address, best first; loopback last.
  [[nodiscard]] virtual std::vector<std::string> Addresses() const = 0;

  /// With Callbacks::kInProgress: readable while callbacks wait for Progress(), for poll, epoll and the like;
  /// the endpoint closes it. Otherwise -1.
  [[nodiscard]] virtual int descriptor() const = 0;
  /// Moves on what can move now, without waiting, and runs the callbacks that wait; returns how many. Data,
  /// heartbeats and revocations go on without it, on the progress thread. Any thread; of two at once, one
  /// runs callbacks. Not from a callback.
  virtual size_t Progress() = 0;

  /// Registers memory (of more than 0 bytes), which the caller keeps valid until the Region is closed. Memory
  /// from Allocate is recognised and shared by mapping. Pages are populated. Device memory is taken by
  /// the transports that move it (shm); connections over others refuse it. It must be plain device memory
  /// (docs/gpu.md); the driver is asked, so the call may block in it. kInvalidArgument where the driver
  /// contradicts; kUnavailable where no transport takes it.
  virtual Result<Region> Register(const Memory& memory, Access access) = 0;
  Result<Region> Register(std::span<std::byte> bytes, Access access) {
    return Register(HostMemory(bytes), access);
  }

  /// The present position of a stream: for TransferOptions::after. kInvalidArgument while the stream is
  /// captured into a CUDA graph. May block in the driver.
  virtual Result<std::shared_ptr<const DeviceEvent>> Record(const StreamRef& stream) = 0;

  /// Connects to the peer that must prove to be `expected` (job, role, engine, rank and incarnation;
  /// empty role: anyone of the job; incarnation 0: any), trying its addresses ("host:port", numeric or
  /// names) staggered. Returns the existing connection if there is one; one connection results when both
  /// sides connect at once. Blocks until ready, until every address has failed, or until `deadline`.
  /// `key`: what both must have, where the peer has an EndpointOptions::key_of; empty: the token.
  virtual Result<Connection> Connect(const std::vector<std::string>& addresses, const Identity& expected,
                                     TimePoint deadline, std::string key = {}) = 0;
  /// The live connection to this incarnation, whoever opened it.
  [[nodiscard]] virtual std::optional<Connection> Find(Incarnation peer) const = 0;
  [[nodiscard]] virtual std::vector<PeerInfo> Peers() const = 0;
};

}  // namespace weightcast
