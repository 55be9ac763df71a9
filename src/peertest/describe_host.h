#pragma once

#include <string>

#include "peertest/facts.h"

namespace weightcast::peertest {

/// This host, as reached at `address` (numeric). Reads /sys.
HostReport DescribeHost(const std::string& address);

}  // namespace weightcast::peertest
