#pragma once

#include <cstdint>
#include <string_view>

#include "memory/memory.h"
#include "transport/registry.h"
#include "transport/tcp/local_region.h"
#include "transport/tcp/own_operations.h"
#include "transport/types.h"

namespace weightcast::transport::tcp {

/// The names of regions and the commands of this transport. All functions are thread safe.
class Registry : public RegistryOf<LocalRegion, ImportedRegion> {
 public:
  /// `device`: of device memory, which the driver has confirmed.
  Status Register(const RegionName& name, const DescribedMemory& memory, Access access,
                  const StagedDevice* device);
  Result<RemoteRegion> Import(LinkId link, const RegionName& name, uint64_t length, std::string_view key);
};

}  // namespace weightcast::transport::tcp
