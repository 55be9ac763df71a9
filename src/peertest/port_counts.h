#pragma once

#include <vector>

#include "peertest/facts.h"

namespace weightcast::peertest {

/// Of this host's RDMA ports that count, from /sys.
std::vector<PortCount> ReadPortCounts();

/// What ports that both have counted in between; without those that sent nothing.
std::vector<PortCount> CountedBetween(const std::vector<PortCount>& before,
                                      const std::vector<PortCount>& after);

}  // namespace weightcast::peertest
