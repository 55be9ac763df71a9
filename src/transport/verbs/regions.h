#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "device/health.h"
#include "memory/memory.h"
#include "transport/region_table.h"
#include "transport/types.h"
#include "transport/verbs/address.h"

namespace weightcast::transport::verbs {

struct LocalRegion : OwnRegion {
  Parts parts;
  std::vector<ibv_mr*> registered;  ///< By NIC and part. Null: the NIC was dead.
  // Of device memory:
  std::shared_ptr<const device::Health> health{};  ///< Of its device. Null: host memory.
  UniqueFd buffer{};                               ///< Its dma-buf, if it has one: until no NIC has it.
};

/// A peer's region as this side knows it.
struct ImportedRegion {
  uint32_t id = 0;
  uint32_t generation = 0;  ///< 0: no import has this index.
  Access access = Access::kLocal;
  uint64_t base = 0;
  uint64_t length = 0;
  Parts parts;
  std::vector<uint32_t> rkeys;  ///< By the peer's NIC and part.
};

using Regions = RegionTable<LocalRegion>;

}  // namespace weightcast::transport::verbs
