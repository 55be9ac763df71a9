#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace weightcast::peertest {

using HostPair = std::pair<size_t, size_t>;

/// Every pair of so many hosts once, in as few rounds as can be, none of which has a host twice: a
/// round-robin tournament. Who comes first in a pair changes, so that orders are spread.
std::vector<std::vector<HostPair>> RoundsOf(size_t hosts);

}  // namespace weightcast::peertest
