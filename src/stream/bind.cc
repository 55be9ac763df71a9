#include "stream/bind.h"

#include <algorithm>
#include <utility>

namespace weightcast::stream {
namespace {

/// With a port of the kernel's choice the next address may find it taken: then all is tried with another.
constexpr int kAttempts = 16;

/// What a name's addresses are for a listener: each once, the wildcard for both families.
std::vector<SocketAddress> Usable(const std::vector<SocketAddress>& addresses) {
  const std::vector<SocketAddress> local = LocalAddresses("");
  std::vector<SocketAddress> usable;
  for (SocketAddress address : addresses) {
    if (address.IsWildcard()) address = AnyAddress();
    const bool known =
        local.empty() || address.IsWildcard() || std::ranges::any_of(local, [&](const SocketAddress& mine) {
          return mine.family() == address.family();
        });
    if (known && std::ranges::find(usable, address) == usable.end()) usable.push_back(address);
  }
  return usable.empty() ? addresses : usable;
}

Result<BoundName> ListenOnce(const std::vector<SocketAddress>& addresses, uint16_t port) {
  BoundName bound{.listeners = {}, .port = port};
  for (const SocketAddress& address : addresses) {
    auto listener = Listen(address, PortRange{bound.port, bound.port});
    if (!listener.ok()) return listener.status();  // Names the address.
    WC_ASSIGN_OR_RETURN(const SocketAddress local, LocalAddressOf(listener->get()));
    bound.port = local.port();
    bound.listeners.push_back(std::move(*listener));
  }
  return bound;
}

}  // namespace

Result<BoundName> ListenAtAll(const std::vector<SocketAddress>& addresses, uint16_t port) {
  const std::vector<SocketAddress> usable = Usable(addresses);
  if (usable.empty())
    return Status(Code::kInvalidArgument,
                  "the host to listen at has no address; give an address of this host as HOST:PORT");
  auto bound = ListenOnce(usable, port);
  for (int attempt = 1;
       attempt < kAttempts && port == 0 && !bound.ok() && bound.status().code() == Code::kUnavailable;
       ++attempt)
    bound = ListenOnce(usable, port);
  return bound;
}

Result<BoundName> ListenAtName(const std::string& host, uint16_t port) {
  WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(host, port));
  return ListenAtAll(addresses, port);
}

}  // namespace weightcast::stream
