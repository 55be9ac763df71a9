#include "tools/bench/floor.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>

#include "base/bytes.h"
#include "base/socket.h"
#include "base/statistics.h"
#include "base/strings.h"
#include "tools/bench/channel.h"
#include "tools/bench/floor_copies.h"
#include "tools/bench/pinning.h"
#include "tools/bench/processes.h"
#include "weightcast/clock.h"

namespace weightcast::tools {
namespace {

constexpr std::string_view kCross = "cross";
constexpr std::string_view kCrossHuge = "cross-huge";
constexpr int kWarmUp = 2;
constexpr size_t kFewest = 5;
constexpr size_t kMost = 100'000;
constexpr size_t kBatch = 512;  ///< Ping-pongs between two looks at the clock that counts the time.
constexpr double kFloorSeconds = 60;

TimePoint FloorDeadline() { return Clock::now() + FromSeconds(kFloorSeconds); }

/// Pages that are there, never unmapped: the processes end with their measurement.
Result<std::span<std::byte>> Pages(size_t bytes, int flags, bool huge = false) {
  const size_t page = huge ? 2 << 20 : 4096;
  const size_t whole = (bytes + page - 1) / page * page;
  void* const pages = mmap(nullptr, whole, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED)
    return Error(Code::kExhausted, "cannot allocate ", bytes, " bytes: ", ErrnoText(errno),
                 "; give smaller --sizes");
  madvise(pages, whole, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(pages, 0, whole);
  return std::span(static_cast<std::byte*>(pages), bytes);
}

/// Repeats `once`, which returns the seconds of its timed part, for about `seconds`.
Result<std::vector<double>> Repeat(double seconds,
                                   const std::function<Result<double>(uint64_t round)>& once) {
  std::vector<double> times;
  TimePoint start;
  for (uint64_t round = 0; times.size() < kMost; ++round) {
    if (round == kWarmUp) {
      start = Clock::now();
      times.clear();
    }
    WC_ASSIGN_OR_RETURN(const double one, once(round));
    times.push_back(one);
    if (round >= kWarmUp && times.size() >= kFewest && Seconds(Clock::now() - start) >= seconds) break;
  }
  return times;
}

Result<std::vector<double>> CopyHere(const FloorCase& what, double seconds) {
  PinToCore(0);
  WC_ASSIGN_OR_RETURN(const auto from, Pages(what.bytes, MAP_PRIVATE));
  WC_ASSIGN_OR_RETURN(const auto to, Pages(what.bytes, MAP_PRIVATE));
  volatile uint64_t sum = 0;
  return Repeat(seconds, [&](uint64_t round) -> Result<double> {
    Refresh(from, round);
    const TimePoint begin = Clock::now();
    (what.what == "stream" ? CopyPastCaches : CopyThroughCaches)(to, from);
    const double time = Seconds(Clock::now() - begin);
    sum = sum + Sum(to);
    return time;
  });
}

Status ServeCross(std::span<std::byte> memory, const BenchChannel& channel) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  WC_RETURN_IF_ERROR(channel.Send(PackBytes(static_cast<uint64_t>(getpid()), uint64_t{address})));
  for (;;) {
    WC_RETURN_IF_ERROR(channel.Receive(FloorDeadline(), 64).status());
    WC_RETURN_IF_ERROR(channel.Send(PackBytes(Sum(memory))));
  }
}

Result<std::vector<double>> CopyAcross(const FloorCase& what, const BenchChannel& partner, double seconds) {
  WC_ASSIGN_OR_RETURN(const auto from, Pages(what.bytes, MAP_PRIVATE, what.what == kCrossHuge));
  WC_ASSIGN_OR_RETURN(const std::string where, partner.Receive(FloorDeadline(), 64));
  ByteReader in(where);
  const auto pid = static_cast<pid_t>(in.Get<uint64_t>());
  const auto there = in.Get<uint64_t>();
  return Repeat(seconds, [&](uint64_t round) -> Result<double> {
    Refresh(from, round);
    const TimePoint begin = Clock::now();
    for (size_t done = 0; done < from.size();) {
      const iovec local{from.data() + done, from.size() - done};
      const iovec remote{reinterpret_cast<void*>(there + done), from.size() - done};
      const ssize_t copied = process_vm_writev(pid, &local, 1, &remote, 1, 0);
      if (copied <= 0)
        return Error(Code::kUnavailable, "no copy into another process: ", ErrnoText(errno),
                     "; allow it with kernel.yama.ptrace_scope=0, or leave cross out of --what");
      done += static_cast<size_t>(copied);
    }
    const double time = Seconds(Clock::now() - begin);
    WC_RETURN_IF_ERROR(partner.Send("read"));
    WC_ASSIGN_OR_RETURN(const std::string sum, partner.Receive(FloorDeadline(), 64));
    if (ByteReader(sum).Get<uint64_t>() != Sum(from))
      return Status(Code::kCorrupt,
                    "bytes differ after a cross-process copy of the kernel: check this machine's memory");
    return time;
  });
}

/// All of `bytes` through a socket, spinning.
bool Through(int fd, std::span<std::byte> bytes, bool out) {
  constexpr size_t kCopied = 1 << 20;
  while (!bytes.empty()) {
    const size_t piece = std::min(kCopied, bytes.size());
    const ssize_t moved = out ? send(fd, bytes.data(), piece, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : recv(fd, bytes.data(), piece, MSG_DONTWAIT);
    if (moved > 0)
      bytes = bytes.subspan(static_cast<size_t>(moved));
    else if (moved == 0 || (errno != EAGAIN && errno != EINTR))
      return false;
  }
  return true;
}

/// Ours sends all bytes, and one comes back when the other side has them.
Result<std::vector<double>> ThroughSocket(const FloorCase& what, int fd, double seconds) {
  WC_ASSIGN_OR_RETURN(const auto from, Pages(what.bytes, MAP_PRIVATE));
  std::array<std::byte, 1> answer{};
  return Repeat(seconds, [&](uint64_t round) -> Result<double> {
    Refresh(from, round);
    const TimePoint begin = Clock::now();
    if (!Through(fd, from, /*out=*/true) || !Through(fd, answer, /*out=*/false))
      return Status(Code::kPeerDead, "the benchmark's other process closed its socket; see the output above");
    const double time = Seconds(Clock::now() - begin);
    // When the other side has read them as well.
    if (!Through(fd, answer, /*out=*/false))
      return Status(Code::kPeerDead, "the benchmark's other process closed its socket; see the output above");
    return time;
  });
}

Status ServeSocket(int fd, std::span<std::byte> memory) {
  std::array<std::byte, 1> answer{};
  volatile uint64_t sum = 0;
  while (Through(fd, memory, /*out=*/false)) {
    if (!Through(fd, answer, /*out=*/true)) break;
    sum = sum + Sum(memory);
    if (!Through(fd, answer, /*out=*/true)) break;
  }
  return Status::Ok();
}

/// Half of the time there and back.
Result<std::vector<double>> PingPongs(double seconds, const std::function<bool()>& once) {
  std::vector<double> all;
  const auto batch = [&](uint64_t) -> Result<double> {
    const TimePoint begin = Clock::now();
    for (size_t i = 0; i < kBatch; ++i)
      if (!once())
        return Status(Code::kPeerDead, "the other process of the ping-pong has exited; see the output above");
    return Seconds(Clock::now() - begin) / kBatch / 2;
  };
  return Repeat(seconds, batch);
}

using Word = std::atomic<uint64_t>;

/// Ends with this process' parent if the other side has gone.
void SpinFor(const Word& word, uint64_t value) {
  while (word.load(std::memory_order_acquire) != value) {
  }
}

/// A connection of this machine: the two ends.
Result<std::pair<UniqueFd, UniqueFd>> TcpPair() {
  WC_ASSIGN_OR_RETURN(const SocketAddress any, SocketAddress::Parse("127.0.0.1:0"));
  WC_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(any, PortRange{}));
  WC_ASSIGN_OR_RETURN(const SocketAddress at, LocalAddressOf(listener.get()));
  WC_ASSIGN_OR_RETURN(UniqueFd a, Connect(at, FloorDeadline()));
  if (!WaitFor(listener.get(), POLLIN, FloorDeadline()))
    return Error(Code::kTimedOut, "the benchmark's other process has not connected over loopback within ",
                 kFloorSeconds, " s; run the benchmark where cores are idle");
  WC_ASSIGN_OR_RETURN(UniqueFd b, Accept(listener.get()));
  for (const int fd : {a.get(), b.get()}) TuneTcp(fd, FromSeconds(kFloorSeconds));
  return std::pair(std::move(a), std::move(b));
}

/// What the two processes of a measurement have in common.
struct Common {
  ChannelPair channels;
  std::pair<UniqueFd, UniqueFd> sockets;
  Word* words = nullptr;  ///< Two, in lines of their own.
};

constexpr size_t kApart = 64;  ///< Words between the two.

Status Serve(const FloorCase& what, Common& common) {
  PinToCore(1);
  common.channels.a.Close();
  common.sockets.first.reset();
  if (what.what == "flag-ping") {
    for (uint64_t round = 1;; ++round) {
      SpinFor(common.words[0], round);
      common.words[kApart].store(round, std::memory_order_release);
    }
  }
  WC_ASSIGN_OR_RETURN(const auto memory, Pages(what.bytes, MAP_PRIVATE, what.what == kCrossHuge));
  if (what.what.starts_with(kCross)) return ServeCross(memory, common.channels.b);
  const int fd = common.sockets.second.get();
  if (what.what == "socket") return ServeSocket(fd, memory);
  while (Through(fd, memory, /*out=*/false) && Through(fd, memory, /*out=*/true)) {
  }
  return Status::Ok();
}

Result<std::vector<double>> Drive(const FloorCase& what, Common& common, double seconds) {
  if (what.what.starts_with(kCross)) return CopyAcross(what, common.channels.a, seconds);
  if (what.what == "flag-ping") {
    uint64_t round = 0;
    return PingPongs(seconds, [&] {
      common.words[0].store(++round, std::memory_order_release);
      SpinFor(common.words[kApart], round);
      return true;
    });
  }
  const int fd = common.sockets.first.get();
  if (what.what == "socket") return ThroughSocket(what, fd, seconds);
  WC_ASSIGN_OR_RETURN(const auto memory, Pages(what.bytes, MAP_PRIVATE));
  return PingPongs(seconds, [&] { return Through(fd, memory, true) && Through(fd, memory, false); });
}

Result<std::vector<double>> WithPartner(const FloorCase& what, double seconds) {
  WC_ASSIGN_OR_RETURN(ChannelPair channels, MakeChannelPair());
  WC_ASSIGN_OR_RETURN(auto sockets, TcpPair());
  WC_ASSIGN_OR_RETURN(const auto words, Pages(4096, MAP_SHARED));
  Common common{std::move(channels), std::move(sockets), reinterpret_cast<Word*>(words.data())};
  WC_ASSIGN_OR_RETURN(const pid_t partner, ForkWorker([&] { return Serve(what, common); }));
  PinToCore(0);  // After the other has been started, which could choose no other core than ours.
  common.channels.b.Close();
  common.sockets.second.reset();
  auto times = Drive(what, common, seconds);
  kill(partner, SIGKILL);
  waitpid(partner, nullptr, 0);
  munmap(words.data(), words.size());
  return times;
}

}  // namespace

const std::vector<std::string>& FloorNames() {
  static const std::vector<std::string> names{"memcpy", "stream",      "cross",    "cross-huge",
                                              "socket", "socket-ping", "flag-ping"};
  return names;
}

Result<FloorResult> MeasureFloor(const FloorCase& what, double seconds) {
  WC_ASSIGN_OR_RETURN(ChannelPair channels, MakeChannelPair());
  const auto drive = [&] {
    channels.a.Close();
    const bool alone = what.what == "memcpy" || what.what == "stream";
    const auto times = alone ? CopyHere(what, seconds) : WithPartner(what, seconds);
    ByteWriter out;
    if (times.ok())
      for (const double one : *times) out.Put(std::bit_cast<uint64_t>(one));
    return channels.b.Answer(times.status(), out.bytes());
  };
  WC_ASSIGN_OR_RETURN(const pid_t driver, ForkWorker(drive));
  channels.b.Close();
  const auto answer = AwaitAnswer(channels.a, seconds + kFloorSeconds);
  kill(driver, SIGKILL);
  waitpid(driver, nullptr, 0);
  WC_RETURN_IF_ERROR(answer.status());
  std::vector<double> times;
  for (ByteReader in(*answer); !in.rest().empty();)
    times.push_back(std::bit_cast<double>(in.Get<uint64_t>()));
  FloorResult result{.what = what};
  result.p50_us = Quantile(times, 0.5) * 1e6;
  result.p99_us = Quantile(times, 0.99) * 1e6;
  result.gb_per_s = static_cast<double>(what.bytes) / result.p50_us / 1e3;
  return result;
}

}  // namespace weightcast::tools
