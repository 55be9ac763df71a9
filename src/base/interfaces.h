#pragma once

#include <string>
#include <vector>

#include "base/socket.h"

namespace weightcast {

/// An IPv4 or IPv6 address of one of this host's network interfaces.
struct InterfaceAddress {
  std::string interface;
  SocketAddress address;
  bool up = false;
  int prefix = -1;  ///< How many leading bits all of its subnet share; -1: it has no netmask.
};

/// All of them, in the kernel's order.
std::vector<InterfaceAddress> InterfaceAddresses();

}  // namespace weightcast
