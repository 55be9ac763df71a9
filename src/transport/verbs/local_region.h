#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <vector>

#include "base/fd.h"
#include "device/health.h"
#include "transport/region_table.h"
#include "transport/verbs/address.h"

namespace weightcast::transport::verbs {

struct LocalRegion : OwnRegion {
  Parts parts;
  std::vector<ibv_mr*> registered;  ///< By NIC and part. Null: the NIC was dead.
  // Of device memory:
  std::shared_ptr<const device::Health> health{};  ///< Of its device. Null: host memory.
  UniqueFd buffer{};                               ///< Its dma-buf, if it has one: until no NIC has it.
};

using Regions = RegionTable<LocalRegion>;

}  // namespace weightcast::transport::verbs
