#include "tools/p2p_bench.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/strings.h"
#include "endpoint/endpoint.h"
#include "tools/bench_processes.h"
#include "tools/demo_messages.h"
#include "weightcast/memory.h"

namespace weightcast::tools {
namespace {

constexpr int kFewestTransfers = 10;
constexpr size_t kMostTransfers = 200'000;
constexpr int kWarmUp = 3;
constexpr double kPatienceSeconds = 120;

TimePoint Patience() { return Clock::now() + FromSeconds(kPatienceSeconds); }

/// Memory of the kind that a case asks for.
class BenchMemory {
 public:
  static Result<BenchMemory> Make(const std::string& kind, size_t bytes) {
    BenchMemory memory;
    if (kind == "mapped") {
      WC_ASSIGN_OR_RETURN(memory.shared_, Allocate(bytes));
      memory.bytes_ = memory.shared_->bytes();
      return memory;
    }
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
      return Status(Code::kExhausted, StrCat("cannot allocate ", bytes, " bytes: ", ErrnoText(errno)));
    // Never unmapped: the process that owns it ends with its measurements.
    memory.bytes_ = {static_cast<std::byte*>(pages), bytes};
    return memory;
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::shared_ptr<SharedBuffer> shared_;
  std::span<std::byte> bytes_;
};

/// Pieces lie twice their length apart.
uint64_t SpanOf(const P2pCase& one) { return one.iovs == 1 ? one.piece_bytes : 2 * one.bytes(); }

size_t MemoryFor(const std::vector<P2pCase>& cases) {
  uint64_t most = 4096;
  for (const P2pCase& one : cases) most = std::max(most, SpanOf(one));
  return most;
}

void PinToCore(int which) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || seen++ != which) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

/// One of the two processes: its endpoint and its registered memory.
struct Side {
  std::unique_ptr<Endpoint> endpoint;
  BenchMemory memory;
  Region region;  ///< Last, so that it ends before the others.
};

Result<Side> MakeSide(const std::vector<P2pCase>& cases, const Settings& settings, uint32_t rank,
                      Access access) {
  PinToCore(static_cast<int>(rank));
  EndpointOptions options;
  options.self = {.job = "bench", .role = "bench", .engine = "", .rank = rank};
  options.settings = settings;
  options.settings.transport = cases.front().transport;
  if (options.settings.bind.empty()) options.settings.bind = "127.0.0.1";
  WC_ASSIGN_OR_RETURN(BenchMemory memory, BenchMemory::Make(cases.front().memory, MemoryFor(cases)));
  WC_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint, Endpoint::Create(std::move(options)));
  WC_ASSIGN_OR_RETURN(Region region, endpoint->Register(memory.bytes(), access));
  return Side{std::move(endpoint), std::move(memory), std::move(region)};
}

void FillPattern(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = (i + seed) * 0x9E3779B97F4A7C15;
    std::memcpy(bytes.data() + i, &word, 8);
  }
}

/// The passive process: offers its memory until the other one has gone.
Status RunTarget(int peer, const std::vector<P2pCase>& cases, const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const Side side, MakeSide(cases, settings, 1, Access::kReadWrite));
  FillPattern(side.memory.bytes(), 1);
  ByteWriter hello;
  hello.Put(side.endpoint->self().incarnation);
  hello.PutString(side.region.Descriptor());
  const auto addresses = side.endpoint->Addresses();
  hello.Put(static_cast<uint32_t>(addresses.size()));
  for (const auto& address : addresses) hello.PutString(address);
  WC_RETURN_IF_ERROR(SendDatagram(peer, hello.bytes()));
  // An empty answer is the end.
  return ReceiveDatagram(peer, Clock::now() + std::chrono::hours(24)).status();
}

struct Peer {
  Connection connection;
  uint32_t region = 0;
};

Result<Peer> Meet(int peer, const Side& side, const std::string& transport) {
  WC_ASSIGN_OR_RETURN(const auto bytes, ReceiveDatagram(peer, Patience()));
  if (!bytes) return Status(Code::kPeerDead, "the other process of the benchmark has ended");
  ByteReader in(*bytes);
  Identity expected{.job = "bench", .role = "bench", .engine = "", .rank = 1};
  expected.incarnation = in.Get<Incarnation>();
  const std::string descriptor(in.GetString(64 << 10));
  std::vector<std::string> addresses;
  for (auto left = in.Get<uint32_t>(); left > 0 && in.ok(); --left) addresses.emplace_back(in.GetString(256));
  WC_ASSIGN_OR_RETURN(Connection connection, side.endpoint->Connect(addresses, expected, Patience()));
  if (connection.transport_name() != transport) {
    return Status(Code::kUnavailable, StrCat("no connection over ", transport, ": ", connection.Describe()));
  }
  WC_ASSIGN_OR_RETURN(const uint32_t region, connection.Import(descriptor));
  return Peer{connection, region};
}

std::vector<Piece> PiecesOf(const P2pCase& one, const Side& side, const Peer& peer) {
  std::vector<Piece> pieces;
  for (uint64_t i = 0; i < one.iovs; ++i) {
    const uint64_t at = 2 * i * one.piece_bytes;
    pieces.push_back({.local_region = side.region.id(),
                      .remote_region = peer.region,
                      .local_offset = side.region.offset() + at,
                      .remote_offset = at,
                      .length = one.piece_bytes});
  }
  return pieces;
}

Status TransferOnce(Peer& peer, const std::string& op, const std::vector<Piece>& pieces) {
  auto transfer = op == "write" ? peer.connection.Write(pieces, {}) : peer.connection.Read(pieces, {});
  WC_RETURN_IF_ERROR(transfer.status());
  return transfer->Wait();
}

/// Compares what stands at the target: what was written there, or what should have been read.
Status CompareOnce(const P2pCase& one, const Side& side, Peer& peer, const std::vector<Piece>& pieces) {
  std::vector<std::byte> before(SpanOf(one));
  const auto here = side.memory.bytes().first(before.size());
  std::copy(here.begin(), here.end(), before.begin());
  for (const Piece& piece : pieces)
    std::memset(here.data() + (piece.local_offset - side.region.offset()), 0, piece.length);
  WC_RETURN_IF_ERROR(TransferOnce(peer, "read", pieces));
  if (std::equal(here.begin(), here.end(), before.begin())) return Status::Ok();
  return {Code::kCorrupt,
          StrCat("bytes differ after ", one.op, " of ", one.bytes(), " over ", one.transport)};
}

Result<P2pResult> MeasureCase(const P2pCase& one, const Side& side, Peer& peer, double seconds) {
  const auto pieces = PiecesOf(one, side, peer);
  FillPattern(side.memory.bytes().first(SpanOf(one)), one.bytes());
  for (int i = 0; i < kWarmUp; ++i) WC_RETURN_IF_ERROR(TransferOnce(peer, one.op, pieces));
  std::vector<double> times;
  const TimePoint start = Clock::now();
  TimePoint last = start;
  while (times.size() < kMostTransfers &&
         (times.size() < kFewestTransfers || Seconds(last - start) < seconds)) {
    WC_RETURN_IF_ERROR(TransferOnce(peer, one.op, pieces));
    const TimePoint now = Clock::now();
    times.push_back(Seconds(now - last));
    last = now;
  }
  WC_RETURN_IF_ERROR(CompareOnce(one, side, peer, pieces));
  std::sort(times.begin(), times.end());
  P2pResult result{.what = one, .transfers = static_cast<int64_t>(times.size())};
  const double p50 = times[times.size() / 2];
  result.p50_us = p50 * 1e6;
  result.p99_us = times[times.size() * 99 / 100] * 1e6;
  result.gb_per_s = static_cast<double>(one.bytes()) / p50 / 1e9;
  return result;
}

/// The active process.
Status RunSource(int peer_fd, int parent, const std::vector<P2pCase>& cases, const Settings& settings,
                 double seconds) {
  WC_ASSIGN_OR_RETURN(const Side side, MakeSide(cases, settings, 0, Access::kLocal));
  WC_ASSIGN_OR_RETURN(Peer peer, Meet(peer_fd, side, cases.front().transport));
  for (const P2pCase& one : cases) {
    WC_ASSIGN_OR_RETURN(const P2pResult result, MeasureCase(one, side, peer, seconds));
    ByteWriter out;
    out.PutString("");
    out.Put(result.transfers);
    for (const double value : {result.p50_us, result.p99_us, result.gb_per_s})
      out.Put(std::bit_cast<uint64_t>(value));
    WC_RETURN_IF_ERROR(SendDatagram(parent, out.bytes()));
  }
  return Status::Ok();
}

Result<P2pResult> NextResult(int fd, const P2pCase& one, double seconds) {
  WC_ASSIGN_OR_RETURN(const auto bytes, ReceiveDatagram(fd, Patience() + FromSeconds(seconds)));
  if (!bytes) return Status(Code::kPeerDead, "a process of the benchmark has ended unexpectedly");
  ByteReader in(*bytes);
  const std::string error(in.GetString(64 << 10));
  if (!error.empty()) return Status(Code::kUnavailable, error);
  P2pResult result{.what = one, .transfers = in.Get<int64_t>()};
  for (double* value : {&result.p50_us, &result.p99_us, &result.gb_per_s})
    *value = std::bit_cast<double>(in.Get<uint64_t>());
  return result;
}

}  // namespace

Status MeasureP2p(const std::vector<P2pCase>& cases, const Settings& settings, double seconds,
                  const std::function<void(const P2pResult&)>& on_result) {
  WC_ASSIGN_OR_RETURN(SocketPair between, MakeSocketPair());
  WC_ASSIGN_OR_RETURN(SocketPair results, MakeSocketPair());
  const pid_t target = ForkWorker(results.b.get(), [&] {
    between.a.reset();
    return RunTarget(between.b.get(), cases, settings);
  });
  const pid_t source = ForkWorker(results.b.get(), [&] {
    between.b.reset();
    return RunSource(between.a.get(), results.b.get(), cases, settings, seconds);
  });
  between = SocketPair{};
  results.b.reset();
  Status status;
  for (const P2pCase& one : cases) {
    const auto result = NextResult(results.a.get(), one, seconds);
    status = result.status();
    if (!status.ok()) break;
    on_result(*result);
  }
  for (const pid_t pid : {source, target}) {
    if (pid <= 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  if (source < 0 || target < 0) return {Code::kExhausted, "cannot start the benchmark's processes"};
  return status;
}

}  // namespace weightcast::tools
