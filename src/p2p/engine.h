#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "p2p/memories.h"
#include "p2p/operations.h"
#include "p2p/peers.h"
#include "p2p/state.h"
#include "weightcast/clock.h"
#include "weightcast/endpoint.h"
#include "weightcast/settings.h"

namespace weightcast::p2p {

inline constexpr size_t kMaxPieces = 1 << 20;  ///< Of one receive.
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
  Result<Advert> Advertise(const LocalSlice& bytes);

  // --- Operations. Errors of the arguments come back here, all else by Wait or Poll.
  Result<uint64_t> Send(uint64_t channel, std::span<const LocalSlice> from);
  /// At least as many bytes as the send has. With as many pieces, each at least as long as the send's, every
  /// piece goes to the front of its own; otherwise both are rows of bytes. A piece beyond the end of its
  /// memory means up to that end.
  Result<uint64_t> Receive(uint64_t channel, std::span<const LocalSlice> to);
  /// Pairs of `local` and `adverts`; the advert may name more bytes, of which the first are meant.
  Result<uint64_t> Write(uint64_t channel, std::span<const LocalSlice> local,
                         std::span<const Advert> adverts);
  Result<uint64_t> Read(uint64_t channel, std::span<const LocalSlice> local, std::span<const Advert> adverts);
  /// Nothing as long as it goes on. How it ended is told once; then the number is unknown. A caller
  /// who does nothing but poll is kept as by Wait, for at most about 1 ms in each round of its polls.
  std::optional<Status> Poll(uint64_t operation);
  /// Interrupted: the operation is cancelled, and its memory is the caller's again.
  Status Wait(uint64_t operation, const Interrupted& interrupted);

 private:
  explicit Engine(EngineOptions options);

  Result<uint64_t> OpenChannel(const Connection& connection, bool by_index);
  Result<OwnSlice> ResolveToAdvertise(const LocalSlice& bytes);
  Result<uint64_t> OneSided(OperationKind kind, uint64_t channel, std::span<const LocalSlice> local,
                            std::span<const Advert> adverts);
  bool PollsInALoop(Operation& operation) const;
  void MoveOn(Operation& operation, Duration limit, std::unique_lock<std::mutex>& lock);
  void Drive(Operation& operation, Transfer transfer, TimePoint until);

  const EngineOptions options_;
  State s_{options_.settings, options_.stream_of};
  Memories memories_{s_};
  Operations operations_{s_, memories_};
  Peers peers_{s_, memories_, operations_};
  uint64_t poll_round_ = 1;  ///< Ends when a poll has told of an end, or has waited.
  TimePoint last_poll_{};
};

}  // namespace weightcast::p2p
