#include "transport/shm/channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/advice.h"
#include "base/socket.h"
#include "base/strings.h"
#include "transport/shm/messages.h"

namespace weightcast::transport::shm {
namespace {

constexpr std::string_view kMoreFiles = "; raise the limit of open files (ulimit -n)";

Status ChannelError(std::string_view what, std::string_view advice) {
  const int error = errno;
  const bool exhausted = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
  if (exhausted) return Error(Code::kExhausted, what, ": ", ErrnoAndAdvice(error));
  return Error(Code::kUnavailable, what, ": ", ErrnoText(error), advice);
}

struct Address {
  sockaddr_un raw{};
  socklen_t length = 0;
};

Result<Address> AbstractAddress(std::string_view name) {
  Address address;
  if (name.empty() || name.size() >= sizeof address.raw.sun_path) {
    return Error(Code::kProtocol, "the peer's Unix socket has a name of ", name.size(),
                 " characters, and must have one of 1 to 107");
  }
  address.raw.sun_family = AF_UNIX;
  std::memcpy(address.raw.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<UniqueFd> NewSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ChannelError("cannot make a Unix socket", "; leave shm out in setting transport");
  return fd;
}

using Control = std::array<char, CMSG_SPACE(sizeof(int) * Channel::kMostFds)>;

/// 1: sent; 0: no room now; -1: error in errno.
int TrySend(int socket, std::string_view bytes, std::span<const int> fds) {
  alignas(cmsghdr) Control control{};
  iovec io{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  while (true) {
    if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return 1;
    // ETOOMANYREFS: this user has too many descriptors under way; their receivers take them soon.
    if (errno == EAGAIN || errno == ETOOMANYREFS || errno == ENOBUFS) return 0;
    if (errno != EINTR) return -1;
  }
}

std::vector<UniqueFd> TakeFds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Result<UniqueFd> Channel::Listen(std::string_view name) {
  WC_ASSIGN_OR_RETURN(const Address address, AbstractAddress(name));
  WC_ASSIGN_OR_RETURN(auto fd, NewSocket());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.raw), address.length) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return ChannelError("cannot listen at a Unix socket", "; leave shm out in setting transport");
  }
  return fd;
}

Result<Channel> Channel::Connect(std::string_view name) {
  WC_ASSIGN_OR_RETURN(const Address address, AbstractAddress(name));
  WC_ASSIGN_OR_RETURN(auto fd, NewSocket());
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.raw), address.length) != 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN)
      return Error(Code::kExhausted, "the peer takes no connections over shared memory: its queue is full",
                   kSeePeer);
    if (errno != ECONNREFUSED)
      return ChannelError("cannot connect to the peer's Unix socket",
                          "; both processes must be in one network namespace");
    return Status(
        Code::kUnavailable,
        "the peer's Unix socket is not there: the peer is in another network namespace, or has just "
        "ended; to use shm, run both in one network namespace, else allow tcp in setting transport");
  }
  return Channel(std::move(fd));
}

Status Channel::Send(std::string_view bytes, std::span<const int> fds) {
  if (waiting_.empty()) {
    const int sent = TrySend(socket_.get(), bytes, fds);
    if (sent == 1) return Status::Ok();
    if (sent < 0) return ChannelError("cannot send to the peer over shared memory", kSeePeer);
  }
  if (waiting_.size() >= kMostWaiting)
    return Error(Code::kUnavailable, "the peer does not read its messages over shared memory", kSeePeer);
  Incoming kept{.bytes = std::string(bytes), .fds = {}};
  for (const int fd : fds) {
    kept.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!kept.fds.back().valid())
      return ChannelError("cannot keep a descriptor until the peer reads its messages", kMoreFiles);
  }
  waiting_.push_back(std::move(kept));
  return Status::Ok();
}

Status Channel::Flush() {
  while (!waiting_.empty()) {
    const Incoming& next = waiting_.front();
    std::array<int, kMostFds> raw{};
    for (size_t i = 0; i < next.fds.size(); ++i) raw[i] = next.fds[i].get();
    const int sent = TrySend(socket_.get(), next.bytes, std::span(raw).first(next.fds.size()));
    if (sent == 0) return Status::Ok();
    if (sent < 0) return ChannelError("cannot send to the peer over shared memory", kSeePeer);
    waiting_.pop_front();
  }
  return Status::Ok();
}

std::string Channel::PeerName() const {
  const auto peer = CredentialsOf(socket_.get());
  if (peer.ok() && peer->pid > 0) return StrCat("pid ", peer->pid);
  return "a process of another pid namespace";
}

void Channel::Ring() const {
  static const std::string bell = Encode(Bell{});
  [[maybe_unused]] const int ignored = TrySend(socket_.get(), bell, {});
}

Result<std::optional<Channel::Incoming>> Channel::Receive() {
  alignas(cmsghdr) Control control{};
  std::array<char, kMostBytes> buffer{};
  iovec io{.iov_base = buffer.data(), .iov_len = buffer.size()};
  bool reset = false;
  while (true) {
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got > 0) {
      Incoming incoming{.bytes = std::string(buffer.data(), static_cast<size_t>(got)),
                        .fds = TakeFds(message)};
      if ((message.msg_flags & MSG_CTRUNC) != 0) {
        return Error(Code::kExhausted, "this process has no descriptors left for what the peer sent",
                     kMoreFiles);
      }
      if ((message.msg_flags & MSG_TRUNC) != 0)
        return Error(Code::kProtocol, "it sent a message of more than ", kMostBytes,
                     " bytes over its Unix socket");
      return std::optional(std::move(incoming));
    }
    if (got == 0) {
      TakeFds(message);  // An empty message may carry some: they must not stay open here.
      return Status(Code::kUnavailable, "the peer closed its socket of shared memory; see its log");
    }
    if (errno == EAGAIN) return std::optional<Incoming>();
    // A reset is told once, before what the peer had sent last: that is read yet.
    if (errno == ECONNRESET && !std::exchange(reset, true)) continue;
    if (errno != EINTR) return ChannelError("the peer's socket of shared memory failed", kSeePeer);
  }
}

}  // namespace weightcast::transport::shm
