#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/listener.h"
#include "base/log.h"
#include "base/socket.h"
#include "endpoint/transfers/sockets.h"
#include "endpoint/transfers/timers.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

class Handshakes;

/// Where an endpoint listens for handshakes. Belongs to the holder of progress, but for what is constant.
class HandshakeListener {
 public:
  /// By the settings bind, port_range, advertise and interface. Errors name the setting.
  static Result<std::unique_ptr<HandshakeListener>> Open(const Settings& settings);
  HandshakeListener(const HandshakeListener&) = delete;
  HandshakeListener& operator=(const HandshakeListener&) = delete;

  [[nodiscard]] uint16_t port() const { return port_; }
  [[nodiscard]] bool loopback_only() const { return loopback_only_; }
  /// "host:port" for peers, best first, loopback last.
  [[nodiscard]] const std::vector<std::string>& addresses() const { return addresses_; }

  /// Accepts from now on.
  Status Start(Sockets& sockets, Timers& timers, Handshakes& handshakes);
  void Stop();

 private:
  HandshakeListener() = default;
  void OnAcceptable();

  Listener socket_;
  uint16_t port_ = 0;
  bool loopback_only_ = false;
  std::vector<std::string> addresses_;
  Sockets* sockets_ = nullptr;  ///< From Start on, like the two below.
  Timers* timers_ = nullptr;
  Handshakes* handshakes_ = nullptr;
  uint64_t key_ = 0;
  TimerId pause_;
  OncePerSecond complaint_;
};

/// All socket addresses of "host:port" texts, numeric ones in place, names resolved (which blocks on the
/// resolver). kInvalidArgument names a text that is no address; a name that is unknown now is kUnavailable
/// only if nothing else is left.
Result<std::vector<SocketAddress>> ResolveAll(const std::vector<std::string>& addresses);

}  // namespace weightcast::endpoint
