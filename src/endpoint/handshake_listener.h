#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/listener.h"
#include "base/socket.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

/// Where an endpoint listens for handshakes.
struct HandshakeListener {
  Listener socket;
  uint16_t port = 0;
  bool loopback_only = false;
  std::vector<std::string> addresses;  ///< "host:port" for peers, best first, loopback last.
};

/// By the settings bind, port_range, advertise and interface. Errors name the setting.
Result<HandshakeListener> OpenHandshakeListener(const Settings& settings);

/// All socket addresses of "host:port" texts, numeric ones in place, names resolved (which blocks on the
/// resolver). kInvalidArgument names a text that is no address; a name that is unknown now is kUnavailable
/// only if nothing else is left.
Result<std::vector<SocketAddress>> ResolveAll(const std::vector<std::string>& addresses);

}  // namespace weightcast::endpoint
