#include "peertest/reach.h"

#include "base/socket.h"
#include "base/strings.h"
#include "weightcast/clock.h"

namespace weightcast::peertest {

std::vector<std::string> TryPorts(const std::vector<std::string>& addresses) {
  constexpr auto kReachTime = std::chrono::seconds(2);
  std::vector<std::string> errors;
  for (const std::string& text : addresses) {
    const auto address = SocketAddress::Parse(text);
    const Status status = address.ok() ? Connect(*address, In(kReachTime)).status() : address.status();
    if (!status.ok()) errors.push_back(StrCat("TCP port ", text, ": ", status.message()));
  }
  return errors;
}

std::vector<std::string> AddressesAt(const std::vector<std::string>& addresses, const std::string& host) {
  std::vector<std::string> found;
  for (const std::string& text : addresses) {
    const auto address = SocketAddress::Parse(text);
    if (address.ok() && address->Host() == host) found.push_back(text);
  }
  return found;
}

}  // namespace weightcast::peertest
