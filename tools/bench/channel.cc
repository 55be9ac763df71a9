#include "tools/bench/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/advice.h"
#include "base/bytes.h"
#include "base/socket.h"
#include "base/strings.h"
#include "tools/common/stop.h"

namespace weightcast::tools {
namespace {

constexpr size_t kMostAnswer = 8 << 20;
constexpr size_t kMostError = 64 << 10;
constexpr double kSendSeconds = 30;

/// Names whose other process is meant.
Status OfBenchmark(const Status& status) {
  return status.ok() ? status : Error(status.code(), "of the benchmark's two processes, ", status.message());
}

}  // namespace

Status BenchChannel::Send(std::string_view message) const {
  return OfBenchmark(SendAll(fd_.get(), PackBytes(message), Clock::now() + FromSeconds(kSendSeconds)));
}

Result<std::string> BenchChannel::Receive(TimePoint deadline, size_t limit) const {
  const auto take = [&](char* out, size_t size) {
    const Status status = ReceiveAll(fd_.get(), out, size, deadline);
    if (status.ok() || status.code() == Code::kTimedOut) return OfBenchmark(status);
    return Status(Code::kPeerDead,
                  "a process of the benchmark has ended unexpectedly; see the output (of both hosts, which "
                  "must have one release)");
  };
  std::string head(sizeof(uint32_t), '\0');
  WC_RETURN_IF_ERROR(take(head.data(), head.size()));
  const auto size = ByteReader(head).Get<uint32_t>();
  if (size > limit)
    return Error(Code::kProtocol, "a process of the benchmark sent a message of ", size,
                 " bytes, more than the ", limit, " allowed; run one release on both hosts");
  std::string message(size, '\0');
  WC_RETURN_IF_ERROR(take(message.data(), message.size()));
  return message;
}

Status BenchChannel::Answer(const Status& status, std::string_view bytes) const {
  return Send(PackBytes(status.ok() ? "" : status.message()).append(bytes));
}

Result<std::string> BenchChannel::TakeAnswer(TimePoint deadline) const {
  WC_ASSIGN_OR_RETURN(const std::string message, Receive(deadline, kMostAnswer));
  ByteReader in(message);
  const std::string error(in.GetString(kMostError));
  if (!error.empty()) return Status(Code::kUnavailable, error);
  return std::string(in.rest());
}

Result<std::string> AwaitAnswer(const BenchChannel& channel, double seconds) {
  pollfd polled[] = {{channel.fd(), POLLIN, 0}, {StopDescriptor(), POLLIN, 0}};
  const TimePoint deadline = Clock::now() + FromSeconds(seconds);
  const int ready = poll(polled, 2, static_cast<int>(seconds * 1000));
  WC_RETURN_IF_ERROR(CheckStop());
  if (ready == 0)
    return Error(Code::kTimedOut, "a process of the benchmark has not answered within ", seconds,
                 " s; run the benchmark where cores are idle");
  return channel.TakeAnswer(deadline);
}

Result<ChannelPair> MakeChannelPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return Error(Code::kExhausted, "cannot make a pair of sockets: ", ErrnoAndAdvice(errno));
  return ChannelPair{BenchChannel(UniqueFd(fds[0])), BenchChannel(UniqueFd(fds[1]))};
}

}  // namespace weightcast::tools
