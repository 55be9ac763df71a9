#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/socket.h"
#include "weightcast/status.h"

namespace weightcast::peertest {

/// "node1", "node1:29751", "10.0.0.1", "[fd00::1]:29751", "fd00::1"; without a port the usual one. Errors:
/// kInvalidArgument.
Result<HostPort> ParseTarget(std::string_view text);
/// One in each line; what follows # is not read. Errors: kInvalidArgument, naming the line; for a host that
/// stands there twice; for fewer than two hosts, or more than kMostHosts.
inline constexpr size_t kMostHosts = 256;
Result<std::vector<std::string>> ParseHostsFile(std::string_view text);
/// "node1:29751", "[fd00::1]:29751".
std::string TargetText(const HostPort& place);

/// The address from which this host sends to another; no packet goes out. kUnavailable: there is no route.
Result<SocketAddress> SourceTo(const SocketAddress& target);

}  // namespace weightcast::peertest
