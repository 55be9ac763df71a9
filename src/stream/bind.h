#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/socket.h"
#include "weightcast/status.h"

namespace weightcast::stream {

struct BoundName {
  std::vector<UniqueFd> listeners;
  uint16_t port = 0;
};

/// Listens at every address of the name, all with one port (0: any). An address of a family that this host
/// has no address of is left out: nobody could reach it. Errors name the address at which it cannot listen:
/// kUnavailable where the port is taken, kInvalidArgument where the address is not this host's.
Result<BoundName> ListenAtName(const std::string& host, uint16_t port);
/// The same at addresses that are known.
Result<BoundName> ListenAtAll(const std::vector<SocketAddress>& addresses, uint16_t port);

}  // namespace weightcast::stream
