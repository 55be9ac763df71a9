#include "tools/bench/p2p/messages.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/advice.h"
#include "base/bytes.h"
#include "base/socket.h"
#include "base/strings.h"
#include "tools/common/stop.h"

namespace weightcast::tools {
namespace {

constexpr size_t kMaxMessage = 8 << 20;
constexpr size_t kMaxName = 256;
constexpr size_t kMaxMetadata = 4096;
constexpr size_t kMaxDescriptor = 64 << 10;
constexpr uint32_t kMaxAddresses = 256;
constexpr double kSendSeconds = 30;

/// Names whose other process is meant.
Status OfBenchmark(const Status& status) {
  return status.ok() ? status
                     : Status(status.code(), StrCat("of the benchmark's two processes, ", status.message()));
}

template <typename T>
Result<T> Whole(const ByteReader& reader, T value) {
  if (reader.AtEnd()) return value;
  return Status(Code::kProtocol,
                "malformed message between the benchmark's processes; run the same release on both sides");
}

void Write(ByteWriter& out, const PartyHello& hello) {
  out.Put(hello.number);
  out.Put(hello.incarnation);
  out.PutString(hello.descriptor);
  out.Put(static_cast<uint32_t>(hello.addresses.size()));
  for (const std::string& address : hello.addresses) out.PutString(address);
  out.PutString(hello.metadata);
  out.Put(hello.device);
}

PartyHello ReadHello(ByteReader& in) {
  PartyHello hello{.number = in.Get<uint32_t>(), .incarnation = in.Get<Incarnation>()};
  hello.descriptor = in.GetString(kMaxDescriptor);
  for (auto left = std::min(in.Get<uint32_t>(), kMaxAddresses); left > 0 && in.ok(); --left)
    hello.addresses.emplace_back(in.GetString(kMaxName));
  hello.metadata = in.GetString(kMaxMetadata);
  hello.device = in.Get<int32_t>();
  return hello;
}

ByteWriter Begin(Ask ask) {
  ByteWriter out;
  out.Put(static_cast<uint8_t>(ask));
  return out;
}

}  // namespace

Status BenchChannel::Send(std::string_view message) const {
  ByteWriter out;
  out.PutString(message);
  return OfBenchmark(SendAll(fd_.get(), out.bytes(), Clock::now() + FromSeconds(kSendSeconds)));
}

Result<std::string> BenchChannel::Receive(TimePoint deadline, size_t limit) const {
  const auto take = [&](char* out, size_t size) {
    const Status status = ReceiveAll(fd_.get(), out, size, deadline);
    if (status.ok() || status.code() == Code::kTimedOut) return OfBenchmark(status);
    return Status(Code::kPeerDead, "a process of the benchmark has ended unexpectedly; see its output");
  };
  std::string head(sizeof(uint32_t), '\0');
  WC_RETURN_IF_ERROR(take(head.data(), head.size()));
  const auto size = ByteReader(head).Get<uint32_t>();
  if (size > limit)
    return Status(Code::kProtocol,
                  "a message that is too long for the benchmark; run the same release on both sides");
  std::string message(size, '\0');
  WC_RETURN_IF_ERROR(take(message.data(), message.size()));
  return message;
}

Status BenchChannel::Answer(const Status& status, std::string_view bytes) const {
  ByteWriter out;
  out.PutString(status.ok() ? "" : status.message());
  out.PutRaw(bytes);
  return Send(out.bytes());
}

Result<std::string> BenchChannel::TakeAnswer(TimePoint deadline) const {
  WC_ASSIGN_OR_RETURN(const std::string message, Receive(deadline, kMaxMessage));
  ByteReader in(message);
  const std::string error(in.GetString(kMaxDescriptor));
  if (!error.empty()) return Status(Code::kUnavailable, error);
  return std::string(in.rest());
}

Result<std::string> AwaitAnswer(const BenchChannel& channel, double seconds) {
  pollfd polled[] = {{channel.fd(), POLLIN, 0}, {StopDescriptor(), POLLIN, 0}};
  const TimePoint deadline = Clock::now() + FromSeconds(seconds);
  const int ready = poll(polled, 2, static_cast<int>(seconds * 1000));
  WC_RETURN_IF_ERROR(CheckStop());
  if (ready == 0)
    return Status(
        Code::kTimedOut,
        "a process of the benchmark has not answered within its time limit; run it where cores are idle");
  return channel.TakeAnswer(deadline);
}

Result<ChannelPair> MakeChannelPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return Status(Code::kExhausted, StrCat("cannot make a pair of sockets: ", ErrnoAndAdvice(errno)));
  return ChannelPair{BenchChannel(UniqueFd(fds[0])), BenchChannel(UniqueFd(fds[1]))};
}

std::string Encode(const PartySetup& setup) {
  ByteWriter out = Begin(Ask::kSetUp);
  out.PutString(setup.transport);
  out.PutString(setup.memory);
  out.Put(setup.bytes);
  out.Put(setup.number);
  out.Put(static_cast<uint8_t>(setup.messages));
  for (const uint32_t device : setup.devices) out.Put(device);
  return out.Take();
}

Result<PartySetup> DecodeSetup(std::string_view bytes) {
  ByteReader in(bytes);
  PartySetup setup;
  setup.transport = in.GetString(kMaxName);
  setup.memory = in.GetString(kMaxName);
  setup.bytes = in.Get<uint64_t>();
  setup.number = in.Get<uint32_t>();
  setup.messages = in.Get<uint8_t>() != 0;
  while (in.ok() && !in.rest().empty()) setup.devices.push_back(in.Get<uint32_t>());
  return Whole(in, std::move(setup));
}

std::string Encode(const PartyHello& hello) {
  ByteWriter out;
  Write(out, hello);
  return out.Take();
}

Result<PartyHello> DecodeHello(std::string_view bytes) {
  ByteReader in(bytes);
  PartyHello hello = ReadHello(in);
  return Whole(in, std::move(hello));
}

std::string Encode(const PartyConnect& order) {
  ByteWriter out = Begin(Ask::kMeet);
  Write(out, order.peer);
  out.Put(static_cast<uint8_t>(order.connects));
  return out.Take();
}

Result<PartyConnect> DecodeConnect(std::string_view bytes) {
  ByteReader in(bytes);
  PartyConnect order{.peer = ReadHello(in)};
  order.connects = in.Get<uint8_t>() != 0;
  return Whole(in, std::move(order));
}

std::string Encode(Ask ask, const PartyWork& work) {
  ByteWriter out = Begin(ask);
  out.PutString(work.op);
  for (const uint64_t value :
       {work.piece_bytes, work.iovs, work.slots, work.repeats, work.from, work.to, work.seed})
    out.Put(value);
  out.Put(work.start);
  return out.Take();
}

Result<PartyWork> DecodeWork(std::string_view bytes) {
  ByteReader in(bytes);
  PartyWork work;
  work.op = in.GetString(kMaxName);
  for (uint64_t* value :
       {&work.piece_bytes, &work.iovs, &work.slots, &work.repeats, &work.from, &work.to, &work.seed})
    *value = in.Get<uint64_t>();
  work.start = in.Get<int64_t>();
  return Whole(in, std::move(work));
}

std::string Encode(const PartyTimes& times) {
  ByteWriter out;
  out.Put(times.begin);
  out.Put(times.end);
  for (const int64_t one : times.transfers) out.Put(one);
  return out.Take();
}

Result<PartyTimes> DecodeTimes(std::string_view bytes) {
  ByteReader in(bytes);
  PartyTimes times{.begin = in.Get<int64_t>(), .end = in.Get<int64_t>()};
  while (in.ok() && !in.rest().empty()) times.transfers.push_back(in.Get<int64_t>());
  return Whole(in, std::move(times));
}

std::optional<std::string_view> AnswerTo(std::string_view op) {
  if (op == "ping") return "pong";
  if (op == "signal") return "echo";
  return std::nullopt;
}

bool IsPing(uint64_t piece_bytes, uint64_t iovs) {
  return iovs == 1 && piece_bytes >= sizeof(uint64_t) && piece_bytes <= kMostPing &&
         piece_bytes % sizeof(uint64_t) == 0;
}

}  // namespace weightcast::tools
