#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/socket.h"
#include "weightcast/status.h"

namespace weightcast::http {

/// Where a server listens: "host:port", "host:low-high" (the first free port) or "host:0" (any).
struct Place {
  std::string host;
  PortRange ports;

  /// `setting` names the option in errors, `example` shows a port. Errors: kInvalidArgument.
  static Result<Place> Parse(std::string_view where, std::string_view setting, int example);
  /// False as soon as one address of the host is reachable from elsewhere. Blocks on the resolver.
  [[nodiscard]] Result<bool> IsLoopback() const;
  /// Errors: kUnavailable when no port is free; kInvalidArgument for an address that is not of this host.
  [[nodiscard]] Result<UniqueFd> Open() const;
};

}  // namespace weightcast::http
