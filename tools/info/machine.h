#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/inventory.h"
#include "tools/info/hardware.h"
#include "topology/hardware.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// What this machine has for moving weights.
struct Machine {
  std::string host;
  std::string kernel;
  std::string cpu;
  int cpus = 0;  ///< That this process may use.
  uint64_t memory_bytes = 0;
  uint64_t memory_available_bytes = 0;
  uint64_t descriptor_limit = 0;
  struct Address {
    std::string interface;
    std::string address;
    int64_t mbit_per_second = -1;  ///< -1: the driver does not say.
    int64_t mtu = -1;
  };
  std::vector<Address> addresses;
  std::vector<std::string> transports;  ///< Built in, best first.
  std::vector<TransportCheck> transport_checks;
  topology::Hardware hardware;
  device::Inventory cuda;
  Status memfd;               ///< Ok: memory that two processes map works.
  Status cross_process_copy;  ///< Ok: one process may write another's memory.
};

/// Looks, and tries what can be tried. Starts a short-lived process; call it while single-threaded.
Machine LookAtMachine(const Settings& settings);

}  // namespace weightcast::tools
