#pragma once

#include <memory>
#include <string>
#include <vector>

#include "drivers/ibverbs/ibverbs.h"
#include "topology/nearest.h"
#include "topology/sysfs.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::topology {

/// One port of an RDMA device.
struct RdmaPort {
  std::string
      name;  ///< "mlx5_0", or "mlx5_0:2" on a device with several ports: as the setting `nics` has it.
  std::string device;
  int port = 1;
  std::string state;           ///< "active", "down", "init", "armed"; "unknown" when it could not be asked.
  std::string link_layer;      ///< "InfiniBand", "Ethernet" or "unknown".
  double gbit_per_second = 0;  ///< 0: unknown.
  std::string gid;             ///< The one that is used; empty: none.
  int gid_index = -1;
  std::string interface;  ///< Empty: none.
  Place place;
  std::string refused;  ///< Why it is not used; empty: it is.
};

/// The machine's hardware for moving weights.
struct Hardware {
  Status rdma;  ///< kUnavailable: libibverbs cannot be loaded.
  std::vector<RdmaPort> ports;
  std::vector<Gpu> gpus;
  std::vector<int> nodes;

  /// The NICs to use for one device or node, nearest first; indices into `ports`.
  std::vector<std::vector<Tier>> NearestToGpus() const;
  std::vector<std::vector<Tier>> NearestToNodes() const;
};

/// Looks; opens each RDMA device for a moment. `api`: LoadIbverbs() or what a test has instead.
Hardware LookAtHardware(const Settings& settings, const Result<std::shared_ptr<drivers::Ibverbs>>& api,
                        const Sysfs& sysfs);

}  // namespace weightcast::topology
