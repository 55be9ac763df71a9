#pragma once

#include <string>
#include <vector>

#include "tools/common/json.h"
#include "topology/hardware.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// A transport of this binary, and whether it works here under these settings.
struct TransportCheck {
  std::string name;
  Status works;
};

/// Makes each transport for a moment, as an endpoint would. Best first.
std::vector<TransportCheck> CheckTransports(const Settings& settings, const topology::Hardware& hardware);

/// Tables for a person: transports, RDMA ports, GPUs and the NICs that are nearest to them.
std::string HardwareText(const std::vector<TransportCheck>& transports, const topology::Hardware& hardware);
/// The same as an object.
Json HardwareJson(const std::vector<TransportCheck>& transports, const topology::Hardware& hardware);

}  // namespace weightcast::tools
