#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast {

/// An IPv4 or IPv6 address with port (and scope), or a Unix abstract name ("@name").
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t length);
  /// "10.0.0.1:80", "[fe80::1%eth0]:80", "@abstract"; numeric only.
  static Result<SocketAddress> Parse(std::string_view text);
  [[nodiscard]] std::string ToString() const;
  /// Without the port and the brackets.
  [[nodiscard]] std::string Host() const;
  [[nodiscard]] uint16_t port() const;
  void set_port(uint16_t port);
  [[nodiscard]] int family() const { return storage_.ss_family; }
  [[nodiscard]] bool IsLoopback() const;
  [[nodiscard]] bool IsWildcard() const;
  friend bool operator==(const SocketAddress& one, const SocketAddress& other) {
    return one.ToString() == other.ToString();
  }
  /// IPv6, reachable from one link only, and only with the scope that names the link.
  [[nodiscard]] bool IsLinkLocal() const;
  /// Which of this host's interfaces a link-local address is meant on.
  void set_scope(uint32_t interface_index);
  [[nodiscard]] const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const { return length_; }

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// "host:port", "[v6]:port" → its two halves.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
Result<HostPort> ParseHostPort(std::string_view text);
/// All addresses of a name, IPv6 and IPv4, in the resolver's order. Blocks on the resolver.
Result<std::vector<SocketAddress>> Resolve(const std::string& host, uint16_t port);
/// Where an address that another process tells of itself may be reached from here: "host:port", numeric only.
/// One address; but the scope of a link-local one is a name at the peer, so there it is one for each
/// interface of this host that has a link, the one that happens to have the same name first. Abstract names
/// are refused. Errors: kInvalidArgument for no address, kUnavailable for a link-local one where no interface
/// has a link.
Result<std::vector<SocketAddress>> ParseOfPeer(std::string_view text);
/// Addresses of this host's usable interfaces: up, not link-local without scope; loopback last.
/// `interfaces`: comma-separated names to take, or with `^` in front to leave out; empty = all.
std::vector<SocketAddress> LocalAddresses(std::string_view interfaces);

/// "low-high" (inclusive), e.g. "29800-29899"; empty string: any free port ({0, 0}).
struct PortRange {
  uint16_t low = 0;
  uint16_t high = 0;
};
Result<PortRange> ParsePortRange(std::string_view text);

/// A listening socket (non-blocking, close-on-exec) at the first free port of the range.
/// IPv6 wildcard also takes IPv4. Errors: kUnavailable "port in use" names the address; kInvalidArgument for
/// an address that is not of this host.
Result<UniqueFd> Listen(SocketAddress address, PortRange ports, int backlog = 4096);
/// Whoever connects to this listener and says nothing is not accepted for about a second. For protocols in
/// which the side that connects speaks first.
void AcceptOnceHeard(int listener);
/// The wildcard address that accepts IPv6 and IPv4 where IPv6 exists, otherwise IPv4's.
SocketAddress AnyAddress();
Result<SocketAddress> LocalAddressOf(int fd);
Result<SocketAddress> PeerAddressOf(int fd);
/// Next pending connection: a non-blocking descriptor, an invalid one when there is none.
Result<UniqueFd> Accept(int listener);
/// Starts to connect; non-blocking. Writable when done; then ConnectOutcome tells. Every packet has the
/// traffic class, the first included; nullopt: the system's.
Result<UniqueFd> StartConnect(const SocketAddress& to, std::optional<uint8_t> traffic_class = {});
Status ConnectOutcome(int fd, const SocketAddress& to);
/// Connects and waits. kTimedOut or kUnavailable name the address.
Result<UniqueFd> Connect(const SocketAddress& to, TimePoint deadline);
/// No Nagle. A peer that does not acknowledge for `user_timeout` ends the connection, and one that has given
/// it up is noticed after half of that (at least a second), also by who only receives. Ignored on Unix
/// sockets.
void TuneTcp(int fd, Duration user_timeout);

/// Marks the packets that a TCP socket sends from now on, whether over IPv4 or IPv6. A listener's answers to
/// a SYN have its class. The lowest two bits stay the kernel's: TCP has them for ECN. The socket's priority
/// (SO_PRIORITY) becomes what the kernel derives from the byte.
Status SetTrafficClass(int fd, uint8_t traffic_class);

/// Waits until `fd` has one of the poll(2) events; false at the deadline.
bool WaitFor(int fd, short events, TimePoint deadline);
/// Blocking whole-buffer helpers with a deadline, for handshakes on non-blocking sockets.
Status SendAll(int fd, std::string_view bytes, TimePoint deadline);
Status ReceiveAll(int fd, char* out, size_t size, TimePoint deadline);
/// Pid and uid of the process at the other end of a Unix socket, told by the kernel.
struct PeerCredentials {
  int pid = 0;
  uint32_t uid = 0;
};
Result<PeerCredentials> CredentialsOf(int unix_socket);

}  // namespace weightcast
