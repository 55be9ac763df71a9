#pragma once

#include <string>
#include <vector>

namespace weightcast::peertest {

/// Tries a TCP connection to each address, one after another. One error for each that failed.
std::vector<std::string> TryPorts(const std::vector<std::string>& addresses);
/// Those of the list that are at this host (numeric).
std::vector<std::string> AddressesAt(const std::vector<std::string>& addresses, const std::string& host);

}  // namespace weightcast::peertest
