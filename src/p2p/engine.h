#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "endpoint/user_memory.h"
#include "p2p/operation.h"
#include "p2p/outbox.h"
#include "weightcast/clock.h"
#include "weightcast/endpoint.h"
#include "weightcast/settings.h"

namespace weightcast::p2p {

inline constexpr uint64_t kSharedChannel = uint64_t{1} << 63;  ///< Its first number on the wire.
inline constexpr size_t kMaxPieces = 1 << 20;                  ///< Of one receive.
inline constexpr uint16_t kFirstPort = 29760;  ///< An engine listens on this + the index of its GPU.

struct EngineOptions {
  Gpu gpu{};
  uint32_t rank = 0;
  std::string token{};  ///< As EndpointOptions::token.
  Settings settings{};  ///< Without a port_range: kFirstPort + gpu.index if that is free, else any.
  /// In which stream of a device the caller works: an operation with memory of that device begins when all is
  /// over that was left there before the call. Asked on the caller's thread. Null: they begin at once.
  std::function<Result<StreamRef>(int device)> stream_of{};
};

/// Bytes of this process, inside a registered memory; memory 0: registered for this call alone. Memory of a
/// GPU is recognised by its address.
struct Local {
  uint64_t memory = 0;
  std::byte* address = nullptr;
  uint64_t length = 0;
};

struct Accepted {
  uint64_t channel = 0;
  std::string host;  ///< "10.0.0.1"
  Gpu gpu;           ///< The peer's.
};

/// Channels, send and recv, reads and writes of advertised memory, over one Endpoint (docs/p2p.md).
///
/// Numbers of channels, memories and operations start at 1 and are never used again. Thread safe. Memory that
/// an operation names stays the caller's and must stay as it is until the operation has ended.
class Engine {
 public:
  /// Looked at ten times a second by calls that wait: true ends them as kCancelled.
  using Interrupted = std::function<bool()>;
  static constexpr Duration kGlance = std::chrono::milliseconds(100);  ///< Between two such looks.

  static Result<std::unique_ptr<Engine>> Create(EngineOptions options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// Ends everything; bounded by the lease. No other call may be under way.
  ~Engine();

  [[nodiscard]] EngineMetadata metadata() const;

  // --- Channels. Connecting tries again until `deadline` while nobody listens there.
  // `by_index`: the script numbers GPUs; the peer's `accept` then gives ours as a number.
  Result<uint64_t> Connect(const std::string& host, uint16_t port, bool by_index, TimePoint deadline,
                           const Interrupted& interrupted);
  /// To the process of this metadata and to no other.
  Result<uint64_t> Connect(const EngineMetadata& peer, bool by_index, TimePoint deadline,
                           const Interrupted& interrupted);
  /// The channel that both sides get who call this with each other's metadata.
  Result<uint64_t> Shared(const EngineMetadata& peer, TimePoint deadline, const Interrupted& interrupted);
  /// The next channel that a peer has opened.
  Result<Accepted> Accept(std::optional<TimePoint> deadline, const Interrupted& interrupted);
  Status CloseChannel(uint64_t channel);
  /// Whether a channel has this number: until CloseChannel, also when the peer has closed it or is gone.
  [[nodiscard]] bool HasChannel(uint64_t channel) const;
  /// A channel to the process of this rank, the shared one before others.
  [[nodiscard]] std::optional<uint64_t> ChannelTo(uint32_t rank) const;

  // --- Memory.
  Result<uint64_t> Register(std::span<std::byte> bytes);
  /// Ends what uses it as kCancelled; kTimedOut as Region::Close.
  Status Deregister(uint64_t memory);
  Result<Advert> Advertise(const Local& bytes);

  // --- Operations. Errors of the arguments come back here, all else by Wait or Poll.
  Result<uint64_t> Send(uint64_t channel, std::span<const Local> from);
  /// At least as many bytes as the send has. With as many pieces, each at least as long as the send's, every
  /// piece goes to the front of its own; otherwise both are rows of bytes. A piece beyond the end of its
  /// memory means up to that end.
  Result<uint64_t> Receive(uint64_t channel, std::span<const Local> to);
  /// Pairs of `local` and `adverts`; the advert may name more bytes, of which the first are meant.
  Result<uint64_t> Write(uint64_t channel, std::span<const Local> local, std::span<const Advert> adverts);
  Result<uint64_t> Read(uint64_t channel, std::span<const Local> local, std::span<const Advert> adverts);
  /// Nothing as long as it goes on. How it ended is told once; then the number is unknown. A caller
  /// who does nothing but poll is kept as by Wait, for at most about 1 ms in each round of its polls.
  std::optional<Status> Poll(uint64_t operation);
  /// Interrupted: the operation is cancelled, and its memory is the caller's again.
  Status Wait(uint64_t operation, const Interrupted& interrupted);

 private:
  explicit Engine(EngineOptions options);

  // Connections and channels (engine.cc).
  Result<Connection> ConnectTo(const std::vector<std::string>& addresses, const Identity& expected,
                               TimePoint deadline, const Interrupted& interrupted);
  Result<Connection> ConnectExactly(const EngineMetadata& peer, TimePoint deadline,
                                    const Interrupted& interrupted);
  PeerPtr PeerOf(const Connection& connection);
  ChannelPtr AddChannel(const PeerPtr& peer, uint64_t wire, Gpu gpu);
  Result<uint64_t> OpenChannel(const Connection& connection, bool by_index);
  ChannelPtr SharedChannel(const PeerPtr& peer);
  Status LoseIfEnded(const PeerPtr& peer);
  void OnDisconnect(const Identity& identity);
  void Lose(const PeerPtr& peer, const Status& reason);
  static void TakeOff(Channel& channel);
  void EndChannel(Channel& channel, const Status& reason);
  void EndUnfinished(Operation& operation, const Status& reason);
  Result<ChannelPtr> Usable(uint64_t channel) const;

  // Messages (engine_messages.cc).
  void OnNotice(Connection connection);
  void Hear(const PeerPtr& peer, Message message);
  void Heard(const PeerPtr& peer, const Open& open);
  void Heard(const PeerPtr& peer, const Close& close);
  void Heard(const PeerPtr& peer, const Describe& describe);
  void Heard(const PeerPtr& peer, const Want& want);
  void Heard(const PeerPtr& peer, const Forget& forget);
  void Heard(const PeerPtr& peer, Offer offer);
  void Heard(const PeerPtr& peer, const Withdraw& withdraw);
  void Heard(const PeerPtr& peer, const Abandon& abandon);
  void Heard(const PeerPtr& peer, const Finished& finished);
  void Heard(const PeerPtr& peer, const Received& received);
  [[nodiscard]] bool IsOutdated(const Connection& connection) const;
  ChannelPtr Named(const PeerPtr& peer, uint64_t wire);
  void Accuse(const PeerPtr& peer, const std::string& what);
  void Tell(const Peer& peer, const Message& message);
  void TellOf(Peer& peer, const Memory& memory);

  // Memory (engine_memory.cc), operations (engine_operations.cc).
  Result<std::shared_ptr<Memory>> NewMemory(std::span<std::byte> bytes, bool temporary);
  void ForgetMemory(const Memory& memory);
  Result<Part> Resolve(const Local& local, bool up_to_end);
  Result<Part> ResolveToAdvertise(const Local& bytes);
  Result<uint64_t> IdentityOf(const Memory& memory);
  [[nodiscard]] Status StillRegistered(const Operation& operation) const;
  void Retire(Operation& operation);
  Result<OperationPtr> Make(OperationKind kind, std::span<const Local> local);
  Status AwaitStreams(const OperationPtr& operation);
  void OnStreamOver(uint64_t waits_as, const Status& outcome);
  Status Attach(Operation& operation, uint64_t channel);
  Result<uint64_t> OneSided(OperationKind kind, uint64_t channel, std::span<const Local> local,
                            std::span<const Advert> adverts);
  static Status CheckAdvert(const Advert& advert, uint64_t length, const Peer& peer);
  uint64_t Number(OperationPtr operation);
  void MeetOffer(const OperationPtr& send);
  static void FitToPieces(const Operation& send, std::vector<Slice>& slices);
  void FailSend(Operation& send, const Status& reason);
  /// As soon as every memory it names has been described.
  void Launch(const OperationPtr& operation);
  Result<bool> AllDescribed(const Operation& operation, Peer& peer);
  static Result<std::vector<Piece>> PiecesOf(const Operation& operation, const Peer& peer);
  void OnTransferEnd(Operation& operation, Status outcome);
  void OfferWhatCanBe(const PeerPtr& peer);
  bool OfferOne(const OperationPtr& receive);
  void OfferMemory(const Operation& receive);
  void EndReceive(const OperationPtr& receive, const Status& outcome);
  void Finish(Operation& operation, const Status& outcome);
  void TellWithdrawn(const Operation& receive, const Status& reason);
  void TellEnd(const Operation& receive);
  void Cancel(const OperationPtr& operation, const Status& reason);
  bool IsOver(Operation& operation);
  bool PollsInALoop(Operation& operation) const;
  void MoveOn(Operation& operation, Duration limit, std::unique_lock<std::mutex>& lock);
  void Drive(Operation& operation, Transfer transfer, TimePoint until);

  /// By which wc-device finds this engine, as long as there is one.
  struct Self {
    std::mutex mutex;
    Engine* engine = nullptr;
  };

  const EngineOptions options_;
  const std::shared_ptr<Self> self_ = std::make_shared<Self>();
  endpoint::UserMemory user_memory_{options_.settings};
  std::unique_ptr<Endpoint> endpoint_;
  Outbox outbox_;

  mutable std::mutex mutex_;         ///< Guards all below.
  std::condition_variable changed_;  ///< Operations that ended or began to move, channels to accept.
  std::map<Incarnation, PeerPtr> peers_;
  std::map<uint64_t, ChannelPtr> channels_;
  std::map<uint64_t, std::shared_ptr<Memory>> memories_;
  std::map<uint64_t, OperationPtr> operations_;
  std::map<uint64_t, OperationPtr> awaiting_;  ///< Those that wait for streams.
  std::deque<ChannelPtr> to_accept_;
  uint64_t last_channel_ = 0;
  uint64_t last_memory_ = 0;
  uint64_t last_operation_ = 0;
  uint64_t last_awaiting_ = 0;
  uint64_t poll_round_ = 1;  ///< Ends when a poll has told of an end, or has waited.
  TimePoint last_poll_{};
};

}  // namespace weightcast::p2p
