#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/memory.h"
#include "transport/region_table.h"
#include "transport/types.h"

namespace weightcast::transport::tcp {

/// A region of this process as lanes see it. Stays where it is as long as anything uses it.
struct LocalRegion {
  std::byte* base = nullptr;
  uint64_t length = 0;
  uint32_t id = 0;
  uint32_t generation = 0;
  Access access = Access::kLocal;
  bool live = false;  ///< Registered and not deregistered.
  uint32_t uses = 0;  ///< Own operations that have it as source or landing place.
};

using Regions = RegionTable<LocalRegion>;

}  // namespace weightcast::transport::tcp
