#pragma once

#include "device/devices.h"
#include "transport/region_table.h"

namespace weightcast::transport::tcp {

class Staging;

/// A device whose memory goes through sockets. Exists as long as the transport.
struct StagedDevice {
  Staging* staging = nullptr;
  int ordinal = -1;
  device::Device device;
};

struct LocalRegion : OwnRegion {
  const StagedDevice* device = nullptr;  ///< Null: host memory.
};
using Regions = RegionTable<LocalRegion>;

}  // namespace weightcast::transport::tcp
