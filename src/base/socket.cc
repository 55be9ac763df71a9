#include "base/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast {
namespace {

constexpr std::string_view kDoesItRun = "; check that the process there runs, and the firewall";

Status SocketError(std::string_view what, std::string_view advice) {
  const int error = errno;
  const bool exhausted = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
  if (exhausted) return Error(Code::kExhausted, what, ": ", ErrnoAndAdvice(error));
  return Error(Code::kUnavailable, what, ": ", ErrnoText(error), advice);
}

Result<UniqueFd> NewSocket(const SocketAddress& address) {
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // As an address that this host does not have.
  if (!fd.valid() && errno == EAFNOSUPPORT)
    return Error(Code::kInvalidArgument, "cannot make a socket for ", address.ToString(), ": ",
                 ErrnoText(errno), "; give an IPv4 or IPv6 address, whichever this host has");
  if (!fd.valid()) return SocketError("cannot make a socket", "; allow it to this process (seccomp profile)");
  return fd;
}

}  // namespace

SocketAddress AnyAddress() {
  if (const UniqueFd probe(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)); probe.valid()) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    const int off = 0;
    setsockopt(probe.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(probe.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0) {
      return {reinterpret_cast<const sockaddr*>(&any), sizeof any};
    }
  }
  sockaddr_in any{};
  any.sin_family = AF_INET;
  return {reinterpret_cast<const sockaddr*>(&any), sizeof any};
}

Result<UniqueFd> Listen(SocketAddress address, PortRange ports, int backlog) {
  if (ports.low == 0 && address.port() != 0) ports = {address.port(), address.port()};
  for (uint32_t port = ports.low; port <= ports.high; ++port) {
    WC_ASSIGN_OR_RETURN(auto fd, NewSocket(address));
    const int on = 1;
    const int off = 0;
    // With it a port of the kernel's choice could be one that another such socket has and does not listen at
    // yet.
    if (port != 0) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address.family() == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    address.set_port(static_cast<uint16_t>(port));
    if (bind(fd.get(), address.raw(), address.length()) == 0 && listen(fd.get(), backlog) == 0) {
      // Accepted connections have it from here. Without it those that linger keep the port from a successor.
      setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      return fd;
    }
    if (errno == EADDRINUSE) continue;
    const Status failure = SocketError(StrCat("cannot listen at ", address.ToString()),
                                       "; give an address of this host, and a port that you may use");
    return errno == EADDRNOTAVAIL ? Status(Code::kInvalidArgument, failure.message()) : failure;
  }
  return Error(Code::kUnavailable, "port in use: ", address.ToString(),
               ports.low == ports.high ? "" : StrCat(" and every port from ", ports.low),
               "; choose another port (of workers: setting port_range) or end the program that holds it");
}

void AcceptOnceHeard(int listener) {
  // The kernel counts in answers to a SYN that it repeats: 1 s is one. Longer would let silent peers fill its
  // queue of connections that are not complete.
  const int seconds = 1;
  setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
}

Result<SocketAddress> LocalAddressOf(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return SocketError("cannot read a socket's own address", kReportBug);
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), length);
}

Result<SocketAddress> PeerAddressOf(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return SocketError("the connection ended before its address was read", "; connect again");
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), length);
}

Result<UniqueFd> Accept(int listener) {
  while (true) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid() || errno == EAGAIN) return fd;
    // A peer that gave up between its SYN and our accept is nobody's error.
    if (errno != EINTR && errno != ECONNABORTED)
      return SocketError("cannot accept a connection",
                         "; check this process's limits (ulimit -a) and the kernel's log (dmesg)");
  }
}

Result<UniqueFd> StartConnect(const SocketAddress& to, std::optional<uint8_t> traffic_class) {
  WC_ASSIGN_OR_RETURN(auto fd, NewSocket(to));
  if (traffic_class) WC_RETURN_IF_ERROR(SetTrafficClass(fd.get(), *traffic_class));
  if (connect(fd.get(), to.raw(), to.length()) == 0 || errno == EINPROGRESS) return fd;
  return SocketError(StrCat("cannot connect to ", to.ToString()), kDoesItRun);
}

Status ConnectOutcome(int fd, const SocketAddress& to) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error == 0) return Status::Ok();
  return Error(Code::kUnavailable, "cannot connect to ", to.ToString(), ": ", ErrnoText(error), kDoesItRun);
}

Result<UniqueFd> Connect(const SocketAddress& to, TimePoint deadline) {
  WC_ASSIGN_OR_RETURN(auto fd, StartConnect(to));
  if (!WaitFor(fd.get(), POLLOUT, deadline)) {
    return Error(Code::kTimedOut, "no answer from ", to.ToString(),
                 " within the time limit; check the address, the firewall and that the process runs");
  }
  WC_RETURN_IF_ERROR(ConnectOutcome(fd.get(), to));
  return fd;
}

void TuneTcp(int fd, Duration user_timeout) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const auto milliseconds =
      static_cast<unsigned int>(std::chrono::duration_cast<std::chrono::milliseconds>(user_timeout).count());
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
  // The peer may have given the connection up while its packets were lost: whoever only waits to receive
  // would never learn of it.
  const auto seconds = static_cast<int>(std::chrono::ceil<std::chrono::seconds>(user_timeout / 2).count());
  const int idle = std::max(seconds, 1);
  const int interval = 1;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
}

Status SetTrafficClass(int fd, uint8_t traffic_class) {
  const int byte = traffic_class;
  int family = AF_INET;
  socklen_t length = sizeof family;
  getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length);
  // An IPv6 socket may carry IPv4.
  bool set = setsockopt(fd, IPPROTO_IP, IP_TOS, &byte, sizeof byte) == 0;
  if (family == AF_INET6) set = setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &byte, sizeof byte) == 0 && set;
  // As the kernel derives it from IPv4's byte (ip_tos2prio), but not of a socket that has the byte from its
  // listener.
  static constexpr std::array<int, 4> kPriorities = {0, 2, 6, 4};
  const int priority = kPriorities[traffic_class >> 3 & 3];
  set = setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority) == 0 && set;
  if (set) return Status::Ok();
  return SocketError(StrCat("cannot set the traffic class ", byte, " of a socket"),
                     "; leave setting traffic_class empty where the system forbids it");
}

bool WaitFor(int fd, short events, TimePoint deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int count = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000)));
    if (count > 0) return true;
    if (count == 0 && Clock::now() >= deadline) return false;
  }
}

Status SendAll(int fd, std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!WaitFor(fd, POLLOUT, deadline))
        return Error(Code::kTimedOut, "the other process did not read within the time limit", kSeePeer);
    } else if (errno != EINTR) {
      return SocketError("cannot send to the other process", kSeePeer);
    }
  }
  return Status::Ok();
}

Status ReceiveAll(int fd, char* out, size_t size, TimePoint deadline) {
  while (size > 0) {
    const ssize_t got = recv(fd, out, size, MSG_DONTWAIT);
    if (got > 0) {
      out += got;
      size -= static_cast<size_t>(got);
    } else if (got == 0) {
      return Error(Code::kUnavailable, "the other process closed the connection", kSeePeer);
    } else if (errno == EAGAIN) {
      if (!WaitFor(fd, POLLIN, deadline))
        return Error(Code::kTimedOut, "the other process did not answer within the time limit", kSeePeer);
    } else if (errno != EINTR) {
      return SocketError("cannot receive from the other process", kSeePeer);
    }
  }
  return Status::Ok();
}

Result<PeerCredentials> CredentialsOf(int unix_socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return SocketError("cannot read which process is connected", kReportBug);
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

}  // namespace weightcast
