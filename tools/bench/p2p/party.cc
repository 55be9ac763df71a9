#include "tools/bench/p2p/party.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/strings.h"
#include "tools/bench/p2p/memory.h"
#include "tools/bench/p2p/messages.h"
#include "tools/bench/p2p/messenger.h"
#include "tools/bench/pinning.h"
#include "weightcast/endpoint.h"

namespace weightcast::tools {
namespace {

constexpr size_t kMaxAsk = 1 << 20;
constexpr uint64_t kMaxPieces = uint64_t{1} << 22;  ///< Of a round.
constexpr uint64_t kMaxBytes = uint64_t{1} << 40;
constexpr uint64_t kWakeBytes = 4096;  ///< At the end of the memory: two pings, and what is not measured.
constexpr Duration kPong = std::chrono::seconds(10);  ///< By then a ping or a signal is answered.
constexpr double kMeetSeconds = 60;
constexpr std::string_view kOneRelease =
    "; run one release on both hosts (on one host, report this as a bug)";
constexpr int64_t kLongestWaitNs = 1'000'000'000;

/// The connection that a peer opens.
class Arrival {
 public:
  void Take(const Connection& connection) {
    const std::lock_guard lock(mutex_);
    connection_ = connection;
    changed_.notify_all();
  }
  Result<Connection> Wait() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, FromSeconds(kMeetSeconds), [&] { return connection_.has_value(); }))
      return *connection_;
    return Error(
        Code::kTimedOut, "the benchmark's other process has not connected within ", kMeetSeconds,
        " s; between hosts, open the firewall for setting port_range, else run it where cores are idle");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Connection> connection_;
};

class Party {
 public:
  Party(Settings settings, std::string token) : settings_(std::move(settings)), token_(std::move(token)) {}

  Result<std::string> Do(std::string_view message) {
    if (message.empty())
      return Error(Code::kProtocol, "a process of the benchmark got an empty message", kOneRelease);
    const auto ask = static_cast<Ask>(message.front());
    message.remove_prefix(1);
    switch (ask) {
      case Ask::kSetUp:
        return SetUp(message);
      case Ask::kMeet:
        return Meet(message);
      case Ask::kFill:
      case Ask::kRun:
      case Ask::kCheck:
        break;
      default:
        return Error(Code::kProtocol, "a process of the benchmark got a message of the unknown type ",
                     static_cast<int>(ask), kOneRelease);
    }
    WC_ASSIGN_OR_RETURN(const PartyWork work, DecodeStruct<PartyWork>(message));
    WC_RETURN_IF_ERROR(Accept(work));
    if (ask == Ask::kRun && work.op == "send") return messenger_->RunSends(work);
    if (ask == Ask::kRun && work.op == "recv") return messenger_->RunReceives(work);
    if (ask == Ask::kRun && (work.op == "ping" || work.op == "pong")) return RunPings(work);
    if (ask == Ask::kRun && (work.op == "signal" || work.op == "echo")) return RunSignals(work);
    if (ask == Ask::kRun) return Run(work);
    WC_RETURN_IF_ERROR(ask == Ask::kFill ? memory_.Fill(work) : memory_.Check(work));
    return std::string();
  }

 private:
  Result<std::string> SetUp(std::string_view message) {
    WC_ASSIGN_OR_RETURN(const PartySetup setup, DecodeStruct<PartySetup>(message));
    if (endpoint_ != nullptr || setup.bytes > kMaxBytes)
      return Error(Code::kProtocol, "process ", setup.number, " of the benchmark ",
                   endpoint_ != nullptr ? StrCat("was set up twice", kOneRelease)
                                        : StrCat("would take ", setup.bytes, " bytes of memory, above ",
                                                 kMaxBytes, "; give smaller --sizes"));
    transport_ = setup.transport;
    if (!OfDevice(setup.memory)) PinToCore(setup.number);  // The device's thread spins beside the caller's.
    EndpointOptions options;
    options.self = {.job = "bench", .role = "bench", .engine = "", .rank = setup.number};
    options.token = token_;
    options.settings = settings_;
    options.settings.transport = setup.transport;
    options.on_connection = [arrival = arrival_](const Connection& connection) { arrival->Take(connection); };
    WC_ASSIGN_OR_RETURN(memory_, BenchMemory::Make(setup, settings_, setup.bytes + kWakeBytes));
    WC_ASSIGN_OR_RETURN(endpoint_, Endpoint::Create(std::move(options)));
    WC_ASSIGN_OR_RETURN(Region region, endpoint_->Register(memory_.memory(), Access::kReadWrite));
    region_.emplace(std::move(region));
    PartyHello hello{.number = setup.number,
                     .incarnation = endpoint_->self().incarnation,
                     .descriptor = region_->Descriptor(),
                     .addresses = endpoint_->Addresses(),
                     .metadata = {},
                     .device = memory_.device()};
    if (setup.messages) {
      Settings settings = settings_;
      settings.transport = setup.transport;
      WC_ASSIGN_OR_RETURN(messenger_, P2pMessenger::Make(settings, token_, setup.number, memory_.bytes()));
      hello.metadata = messenger_->metadata();
    }
    return EncodeStruct(hello);
  }

  Result<std::string> Meet(std::string_view message) {
    WC_ASSIGN_OR_RETURN(const PartyConnect order, DecodeStruct<PartyConnect>(message));
    if (endpoint_ == nullptr)
      return Error(Code::kProtocol, "a process of the benchmark was told to connect before its set-up",
                   kOneRelease);
    const Identity peer{.job = "bench",
                        .role = "bench",
                        .engine = "",
                        .rank = order.peer.number,
                        .incarnation = order.peer.incarnation};
    WC_ASSIGN_OR_RETURN(Connection connection,
                        order.connects ? endpoint_->Connect(order.peer.addresses, peer,
                                                            Clock::now() + FromSeconds(kMeetSeconds))
                                       : arrival_->Wait());
    if (!(connection.peer() == peer))
      return Error(Code::kProtocol, "a process of another benchmark (", ToString(connection.peer()),
                   ") has connected, instead of this benchmark's; run the benchmark again");
    if (connection.transport_name() != transport_) {
      return Error(Code::kUnavailable, "process ", endpoint_->self().rank,
                   " of the benchmark was to connect over ", transport_,
                   " only and has: ", connection.Describe(),
                   "; please report this as a bug, with the command line");
    }
    WC_ASSIGN_OR_RETURN(remote_, connection.Import(order.peer.descriptor));
    connection_.emplace(std::move(connection));
    if (messenger_ != nullptr) WC_RETURN_IF_ERROR(messenger_->Meet(order.peer.metadata));
    return std::string();
  }

  /// Only what lies within the memory, which is as large at both ends.
  Status Accept(const PartyWork& work) const {
    const uint64_t all = memory_.bytes().size();
    const auto within = [&](uint64_t at) { return at <= all && work.slots <= (all - at) / work.stride(); };
    const bool sizes = work.piece_bytes > 0 && work.piece_bytes <= all && work.iovs > 0 &&
                       work.iovs <= kMaxPieces && work.slots > 0 && work.slots <= kMaxPieces / work.iovs &&
                       work.repeats > 0 && work.repeats <= kMaxPieces;
    const bool messages = work.op == "send" || work.op == "recv";
    const bool pings = (work.op == "ping" || work.op == "pong" || work.op == "signal" || work.op == "echo") &&
                       IsPing(work.piece_bytes, work.iovs);
    const bool host = memory_.device() < 0;  // The others look at memory by themselves.
    const bool known =
        work.op == "write" || work.op == "read" || (host && ((messages && messenger_ != nullptr) || pings));
    if (connection_ && known && sizes && within(work.from) && within(work.to)) return Status::Ok();
    return Error(Code::kProtocol, "the benchmark was asked for operation '", work.op, "' on ", work.slots,
                 " x ", work.iovs, " x ", work.piece_bytes, " bytes, which is unknown, or not inside its ",
                 all, " bytes of memory", kOneRelease);
  }

  /// Accept has checked that both lie within the memory.
  [[nodiscard]] Piece PieceAt(uint64_t here, uint64_t there, uint64_t length) const {
    return {region_->Slice(here, length).value(), remote_.Slice(there, length).value()};
  }

  [[nodiscard]] std::vector<std::vector<Piece>> TransfersOf(const PartyWork& work) const {
    const auto [here, there] =
        work.op == "write" ? std::pair(work.from, work.to) : std::pair(work.to, work.from);
    std::vector<std::vector<Piece>> transfers(work.slots);
    for (uint64_t slot = 0; slot < work.slots; ++slot) {
      for (uint64_t i = 0; i < work.iovs; ++i) {
        const uint64_t at = slot * work.stride() + 2 * i * work.piece_bytes;
        transfers[slot].push_back(PieceAt(here + at, there + at, work.piece_bytes));
      }
    }
    return transfers;
  }

  Status TransferOnce(const std::string& op, std::span<const Piece> pieces) {
    auto transfer = op == "write" ? connection_->Write(pieces, {}) : connection_->Read(pieces, {});
    WC_RETURN_IF_ERROR(transfer.status());
    return transfer->Wait();
  }

  Result<std::string> Run(const PartyWork& work) {
    const auto transfers = TransfersOf(work);
    PartyTimes times;
    times.transfers.reserve(work.slots * work.repeats);
    // Both sides were asleep: what is measured is a transfer among others.
    const Piece wake = PieceAt(memory_.bytes().size() - 64, memory_.bytes().size() - 64, 8);
    WC_RETURN_IF_ERROR(TransferOnce(work.op, {&wake, 1}));
    while (NowNanoseconds() < work.start && work.start - NowNanoseconds() < kLongestWaitNs) {
    }
    int64_t last = times.begin = NowNanoseconds();
    for (uint64_t repeat = 0; repeat < work.repeats; ++repeat) {
      for (const auto& pieces : transfers) {
        WC_RETURN_IF_ERROR(TransferOnce(work.op, pieces));
        const int64_t now = NowNanoseconds();
        times.transfers.push_back(now - last);
        last = now;
      }
    }
    times.end = last;
    return EncodeStruct(times);
  }

  /// Writes that the peer sees arrive in its memory and answers by others: one takes half the time of both.
  Result<std::string> RunPings(const PartyWork& work) {
    const uint64_t out = memory_.bytes().size() - kWakeBytes;
    const uint64_t in = out + kMostPing;
    const Piece piece = PieceAt(out, in, work.piece_bytes);
    const bool first = work.op == "ping";
    PartyTimes times;
    int64_t last = times.begin = NowNanoseconds();
    for (uint64_t i = 0; i < work.repeats * work.slots; ++i) {
      ++pings_;
      if (!first) WC_RETURN_IF_ERROR(AwaitPing(in + work.piece_bytes));
      LastWord(out + work.piece_bytes).store(pings_, std::memory_order_relaxed);
      // Who looks at memory does not drive: it waits for its own write while that is on its way there.
      WC_RETURN_IF_ERROR(TransferOnce("write", {&piece, 1}));
      if (!first) continue;
      WC_RETURN_IF_ERROR(AwaitPing(in + work.piece_bytes));
      const int64_t now = NowNanoseconds();
      times.transfers.push_back((now - last) / 2);
      last = now;
    }
    times.end = last;
    return first ? EncodeStruct(times) : std::string();
  }

  /// Pings that tell the peer of themselves, each a transfer of its grant: nobody looks at memory.
  Result<std::string> RunSignals(const PartyWork& work) {
    const uint64_t out = memory_.bytes().size() - kWakeBytes;
    const Piece piece = PieceAt(out, out + kMostPing, work.piece_bytes);
    const auto count = static_cast<uint32_t>(work.repeats * work.slots);
    WC_ASSIGN_OR_RETURN(const GrantName ours, connection_->OpenGrant({.transfers = count}));
    WC_ASSIGN_OR_RETURN(const GrantName theirs, TradeGrants(ours));
    const bool first = work.op == "signal";
    PartyTimes times;
    int64_t last = times.begin = NowNanoseconds();
    std::optional<Transfer> write;
    for (uint32_t i = 0; i < count; ++i) {
      if (!first) WC_RETURN_IF_ERROR(connection_->WaitGrant(ours, i + 1, Clock::now() + kPong));
      if (write) WC_RETURN_IF_ERROR(write->Wait());  // Its answer is here: it has arrived.
      LastWord(out + work.piece_bytes).store(++pings_, std::memory_order_relaxed);
      WC_ASSIGN_OR_RETURN(write, connection_->Write({&piece, 1}, {.grant = theirs, .signal = i}));
      if (!first) continue;
      WC_RETURN_IF_ERROR(connection_->WaitGrant(ours, i + 1, Clock::now() + kPong));
      const int64_t now = NowNanoseconds();
      times.transfers.push_back((now - last) / 2);
      last = now;
    }
    times.end = last;
    if (write) WC_RETURN_IF_ERROR(write->Wait());
    if (LastWord(out + kMostPing + work.piece_bytes).load(std::memory_order_acquire) != pings_)
      return Error(Code::kInternal, "over ", transport_, ", a signal arrived before the ", work.piece_bytes,
                   " bytes of its write; please report this as a bug, with the command "
                   "line");
    connection_->RevokeGrant(ours, {});
    return first ? EncodeStruct(times) : std::string();
  }

  Result<GrantName> TradeGrants(const GrantName& ours) {
    WC_RETURN_IF_ERROR(connection_->Notify(PackBytes(ours.slot, ours.id)));
    WC_ASSIGN_OR_RETURN(const std::string notice, connection_->TakeNotice(Clock::now() + kPong));
    ByteReader in(notice);
    GrantName theirs;
    in.Get(theirs.slot, theirs.id);
    if (!in.ok() || !in.rest().empty())
      return Error(Code::kProtocol, "the benchmark's other process sent a notice of ", notice.size(),
                   " bytes that names no grant", kOneRelease);
    return theirs;
  }

  std::atomic_ref<uint64_t> LastWord(uint64_t end) {
    return std::atomic_ref(*reinterpret_cast<uint64_t*>(memory_.bytes().data() + end - sizeof(uint64_t)));
  }

  Status AwaitPing(uint64_t end) {
    constexpr int kLooks = 256;  // Then who may have to bring it gets this core, where there is no other.
    const auto word = LastWord(end);
    for (const TimePoint deadline = Clock::now() + kPong; Clock::now() < deadline;) {
      for (int look = 0; look < kLooks; ++look) {
        if (word.load(std::memory_order_acquire) == pings_) return Status::Ok();
      }
      std::this_thread::yield();
    }
    return Error(Code::kTimedOut, "the benchmark's other process does not answer a write within ",
                 Seconds(kPong), " s; run the benchmark where cores are idle");
  }

  Settings settings_;
  const std::string token_;
  std::string transport_;
  const std::shared_ptr<Arrival> arrival_ = std::make_shared<Arrival>();
  BenchMemory memory_;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<Region> region_;  ///< After what it is a region of.
  std::optional<Connection> connection_;
  std::unique_ptr<P2pMessenger> messenger_;  ///< For send and recv; after its memory.
  RemoteRegion remote_;
  uint64_t pings_ = 0;  ///< The last; both parties count alike.
};

}  // namespace

void ServeParty(const BenchChannel& channel, const Settings& settings, const std::string& token) {
  Party party(settings, token);
  for (;;) {
    const auto message = channel.Receive(Clock::now() + std::chrono::hours(24), kMaxAsk);
    if (!message.ok()) return;
    const auto answer = party.Do(*message);
    if (!channel.Answer(answer.status(), answer.ok() ? *answer : "").ok()) return;
  }
}

}  // namespace weightcast::tools
