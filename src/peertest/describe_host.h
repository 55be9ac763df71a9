#pragma once

#include <string>

#include "peertest/facts.h"
#include "weightcast/settings.h"

namespace weightcast::peertest {

/// This host, as reached at `address` (numeric), with the RDMA ports that the setting nics leaves in. Reads
/// /sys.
HostReport DescribeHost(const std::string& address, const Settings& settings);

}  // namespace weightcast::peertest
