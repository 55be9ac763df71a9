#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <span>

#include "base/interfaces.h"
#include "base/socket.h"
#include "base/split_list.h"
#include "base/strings.h"

namespace weightcast {

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length)
    : length_(std::min<socklen_t>(length, sizeof storage_)) {
  std::memcpy(&storage_, address, length_);
}

Result<SocketAddress> SocketAddress::Parse(std::string_view text) {
  if (text.starts_with('@')) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    if (text.size() > sizeof name.sun_path)
      return Error(Code::kInvalidArgument, "the abstract socket '", text, "' has a name of ", text.size() - 1,
                   " bytes; give at most 107");
    std::memcpy(name.sun_path + 1, text.data() + 1, text.size() - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size());
    return SocketAddress(reinterpret_cast<const sockaddr*>(&name), length);
  }
  WC_ASSIGN_OR_RETURN(const auto host_port, ParseHostPort(text));
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host_port.host.c_str(), StrCat(host_port.port).c_str(), &hints, &found) != 0) {
    return Error(Code::kInvalidArgument, "'", text,
                 "' has no numeric address; write one such as 10.0.0.1:29750 or [::1]:29750");
  }
  const SocketAddress address(found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

std::string SocketAddress::ToString() const {
  if (family() == AF_UNIX) {
    const auto* name = reinterpret_cast<const sockaddr_un*>(&storage_);
    const size_t path_length = length_ - offsetof(sockaddr_un, sun_path);
    return path_length > 1 ? StrCat("@", std::string_view(name->sun_path + 1, path_length - 1)) : "@";
  }
  if (family() == AF_INET6) return StrCat("[", Host(), "]:", port());
  return StrCat(Host(), ":", port());
}

std::string SocketAddress::Host() const {
  char host[NI_MAXHOST] = {};
  if (getnameinfo(raw(), length_, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return host;
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return 0;
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = htons(port);
}

bool SocketAddress::IsLoopback() const {
  if (family() == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24) == 127;
  }
  if (family() == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address)) return address.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&address) != 0;
  }
  return family() == AF_UNIX;
}

bool SocketAddress::IsWildcard() const {
  if (family() == AF_INET) return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr == 0;
  if (family() != AF_INET6) return false;
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

bool SocketAddress::IsLinkLocal() const {
  if (family() != AF_INET6) return false;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr) != 0;
}

void SocketAddress::set_scope(uint32_t interface_index) {
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_scope_id = interface_index;
}

Result<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  const auto bad = [&] {
    return Error(Code::kInvalidArgument, "'", text, "' is not HOST:PORT; write one such as node0:29750");
  };
  if (colon == std::string_view::npos || colon == 0) return bad();
  const auto port = ParseNumber<uint16_t>(text.substr(colon + 1));
  if (!port) return bad();
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return bad();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return Error(Code::kInvalidArgument, "'", text, "' has an IPv6 address without brackets; write [", host,
                 "]:", *port);
  }
  return HostPort{std::string(host), *port};
}

Result<std::vector<SocketAddress>> Resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), StrCat(port).c_str(), &hints, &found); error != 0) {
    return Error(Code::kUnavailable, "cannot resolve '", host, "': ", gai_strerror(error),
                 "; check the name and the name servers, or write an address");
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    addresses.emplace_back(entry->ai_addr, entry->ai_addrlen);
  }
  freeaddrinfo(found);
  return addresses;
}

namespace {

/// Of a netmask; -1: there is none.
int PrefixOf(const sockaddr* netmask, int family) {
  if (netmask == nullptr) return -1;
  const bool v4 = family == AF_INET;
  const void* const bits =
      v4 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(netmask)->sin_addr)
         : &reinterpret_cast<const sockaddr_in6*>(netmask)->sin6_addr;
  const std::span bytes(static_cast<const uint8_t*>(bits), v4 ? sizeof(in_addr) : sizeof(in6_addr));
  return std::accumulate(bytes.begin(), bytes.end(), 0,
                         [](int ones, uint8_t byte) { return ones + std::popcount(byte); });
}

/// The interfaces on which this host has a link-local address, the one of this name first.
std::vector<uint32_t> Links(std::string_view first) {
  std::vector<uint32_t> links;
  for (const InterfaceAddress& one : InterfaceAddresses()) {
    if (!one.up || !one.address.IsLinkLocal()) continue;
    const uint32_t index = if_nametoindex(one.interface.c_str());
    if (index == 0 || std::ranges::find(links, index) != links.end()) continue;
    links.insert(first == one.interface ? links.begin() : links.end(), index);
  }
  return links;
}

}  // namespace

std::vector<InterfaceAddress> InterfaceAddresses() {
  std::vector<InterfaceAddress> all;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return all;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    const int family = one->ifa_addr == nullptr ? AF_UNSPEC : one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    all.push_back({one->ifa_name, SocketAddress(one->ifa_addr, length), (one->ifa_flags & IFF_UP) != 0,
                   PrefixOf(one->ifa_netmask, family)});
  }
  freeifaddrs(list);
  return all;
}

Result<std::vector<SocketAddress>> ParseOfPeer(std::string_view text) {
  constexpr size_t kMostLinks = 8;
  const size_t scope = std::min(text.find('%'), text.size());
  const size_t end = std::min(text.find(']', scope), text.size());
  WC_ASSIGN_OR_RETURN(SocketAddress address,
                      SocketAddress::Parse(StrCat(text.substr(0, scope), text.substr(end))));
  if (address.family() == AF_UNIX)
    return Error(Code::kInvalidArgument, "'", text,
                 "' is the socket of one host; write a network address such as 10.0.0.1:29750");
  std::vector<SocketAddress> addresses;
  if (!address.IsLinkLocal()) {
    addresses.push_back(address);
    return addresses;
  }
  for (const uint32_t link : Links(text.substr(scope, end - scope).substr(scope < end ? 1 : 0))) {
    if (addresses.size() == kMostLinks) break;
    address.set_scope(link);
    addresses.push_back(address);
  }
  if (addresses.empty())
    return Error(
        Code::kUnavailable, text,
        " is link-local, and no interface of this host has a link-local address; use a routed address of "
        "that process: give it to this call, or set advertise to it in that process");
  return addresses;
}

std::vector<SocketAddress> LocalAddresses(std::string_view interfaces) {
  const bool exclude = interfaces.starts_with('^');
  const auto names = SplitList(exclude ? interfaces.substr(1) : interfaces);
  std::vector<SocketAddress> addresses;
  for (const InterfaceAddress& one : InterfaceAddresses()) {
    const bool named = std::ranges::find(names, one.interface) != names.end();
    if (one.up && (names.empty() || named != exclude)) addresses.push_back(one.address);
  }
  std::stable_partition(addresses.begin(), addresses.end(), [](const auto& a) { return !a.IsLoopback(); });
  return addresses;
}

Result<PortRange> ParsePortRange(std::string_view text) {
  if (text.empty()) return PortRange{};
  const size_t dash = text.find('-');
  const auto low = ParseNumber<uint16_t>(text.substr(0, dash));
  const auto high = dash == std::string_view::npos ? low : ParseNumber<uint16_t>(text.substr(dash + 1));
  if (!low || !high || *low == 0 || *high < *low) {
    return Error(Code::kInvalidArgument, "'", text,
                 "' (setting port_range) is not a port range; write one such as 29800-29899");
  }
  return PortRange{*low, *high};
}

}  // namespace weightcast
