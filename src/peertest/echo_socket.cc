#include "peertest/echo_socket.h"

#include <netinet/in.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/advice.h"
#include "base/strings.h"
#include "peertest/hex.h"

namespace weightcast::peertest {
namespace {

void SetOption(int fd, int level, int name, int value) {
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

/// Room for one traffic class beside a packet.
struct alignas(cmsghdr) Beside {
  char bytes[CMSG_SPACE(sizeof(int))] = {};
};

/// Before every packet: the key, then the two numbers, little-endian.
constexpr size_t kNumberAt = kEchoKeyBytes;
constexpr size_t kReplyAt = kEchoKeyBytes + sizeof(uint32_t);

}  // namespace

void WriteEcho(const EchoHeader& header, std::span<char> packet) {
  std::memcpy(packet.data(), header.key.data(), kEchoKeyBytes);
  std::memcpy(packet.data() + kNumberAt, &header.number, sizeof header.number);
  std::memcpy(packet.data() + kReplyAt, &header.reply_bytes, sizeof header.reply_bytes);
}

std::optional<EchoHeader> ReadEcho(std::span<const char> packet, const std::array<char, kEchoKeyBytes>& key) {
  if (packet.size() < kEchoHeader || std::memcmp(packet.data(), key.data(), kEchoKeyBytes) != 0)
    return std::nullopt;
  EchoHeader header{.key = key};
  std::memcpy(&header.number, packet.data() + kNumberAt, sizeof header.number);
  std::memcpy(&header.reply_bytes, packet.data() + kReplyAt, sizeof header.reply_bytes);
  return header;
}

Result<std::array<char, kEchoKeyBytes>> ParseEchoKey(std::string_view hex) {
  const auto bytes = FromHex(hex);
  if (!bytes || hex.size() != 2 * kEchoKeyBytes)
    return Status(Code::kProtocol, "the other host sent a malformed key; use the same weightcast on both");
  std::array<char, kEchoKeyBytes> key{};
  std::ranges::copy(*bytes, key.begin());
  return key;
}

size_t EchoOverhead(int family) {
  constexpr size_t kUdpHeader = 8;
  constexpr size_t kIpv4Header = 20;
  constexpr size_t kIpv6Header = 40;
  return kUdpHeader + (family == AF_INET6 ? kIpv6Header : kIpv4Header);
}

Result<UniqueFd> OpenEcho(const SocketAddress& at, PortRange ports) {
  UniqueFd fd(socket(at.family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Error(Code::kExhausted, "cannot make a UDP socket: ", ErrnoAndAdvice(errno));
  if (at.family() == AF_INET6) {
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
  } else {
    SetOption(fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
    SetOption(fd.get(), IPPROTO_IP, IP_RECVTOS, 1);
  }
  constexpr int kBuffer = 1 << 20;
  SetOption(fd.get(), SOL_SOCKET, SO_RCVBUF, kBuffer);
  int error = 0;
  for (uint32_t port = ports.low; port <= ports.high; ++port) {
    SocketAddress here = at;
    here.set_port(static_cast<uint16_t>(port));
    if (bind(fd.get(), here.raw(), here.length()) == 0) return fd;
    error = errno;
  }
  return Error(Code::kUnavailable, "cannot bind UDP at ", at.Host(), ": ", ErrnoText(error),
               error == EADDRNOTAVAIL
                   ? "; see with ip addr which addresses the host has, and run the test again"
                   : "; give setting port_range free ports that this user may use, such as 29800-29899");
}

std::optional<Received> ReceiveEcho(int fd, std::span<char> buffer, int* error) {
  sockaddr_storage from{};
  iovec piece{buffer.data(), buffer.size()};
  Beside beside;
  msghdr message{};
  message.msg_name = &from;
  message.msg_namelen = sizeof from;
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = beside.bytes;
  message.msg_controllen = sizeof beside.bytes;
  const ssize_t got = recvmsg(fd, &message, 0);
  if (error != nullptr) *error = got < 0 && errno != EAGAIN && errno != EINTR ? errno : 0;
  if (got < 0) return std::nullopt;
  Received received{.bytes = buffer.first(static_cast<size_t>(got)),
                    .from = SocketAddress(reinterpret_cast<const sockaddr*>(&from), message.msg_namelen)};
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    if (one->cmsg_level == IPPROTO_IP && one->cmsg_type == IP_TOS)
      std::memcpy(&received.traffic_class, CMSG_DATA(one), 1);
    if (one->cmsg_level == IPPROTO_IPV6 && one->cmsg_type == IPV6_TCLASS) {
      int value = 0;
      std::memcpy(&value, CMSG_DATA(one), sizeof value);
      received.traffic_class = static_cast<uint8_t>(value);
    }
  }
  return received;
}

int SendEcho(int fd, std::span<const char> bytes, uint8_t traffic_class, const SocketAddress* to) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  Beside beside;
  msghdr message{};
  sockaddr_storage address{};
  int family = AF_INET;
  if (to != nullptr) {
    std::memcpy(&address, to->raw(), to->length());
    message.msg_name = &address;
    message.msg_namelen = to->length();
    family = to->family();
  } else {
    socklen_t length = sizeof address;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) family = address.ss_family;
  }
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = beside.bytes;
  message.msg_controllen = sizeof beside.bytes;
  cmsghdr* const control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP;
  control->cmsg_type = family == AF_INET6 ? IPV6_TCLASS : IP_TOS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  const int value = traffic_class;
  std::memcpy(CMSG_DATA(control), &value, sizeof value);
  return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

}  // namespace weightcast::peertest
