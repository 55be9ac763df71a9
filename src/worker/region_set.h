#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weightcast/endpoint.h"
#include "weightcast/memory.h"
#include "weightcast/status.h"

namespace weightcast::worker {

class DeviceMemories;

/// Memory of many shards as few regions: spans that touch or overlap share one. Movable.
class RegionSet {
 public:
  /// Where a span lies.
  struct Place {
    uint32_t region = 0;  ///< Index into regions().
    uint64_t offset = 0;  ///< From that region's first byte.
  };
  /// Registers them (empty ones have place {0, 0}). Two spans closer than `gap` bytes may share a region, and
  /// so what lies between them; 0 for memory that others may write. Populates pages, so it may take long.
  /// Spans of device memory share a region only inside one allocation. `devices`: for those.
  static Result<RegionSet> Register(Endpoint& endpoint, std::span<const Memory> spans, Access access,
                                    size_t gap, DeviceMemories& devices);

  [[nodiscard]] const std::vector<Region>& regions() const { return regions_; }
  [[nodiscard]] const std::vector<Place>& places() const { return places_; }
  /// The bytes of each span; of empty ones the slice that names nothing.
  [[nodiscard]] const std::vector<LocalSlice>& slices() const { return slices_; }
  /// Ends all; kTimedOut if some peer may still write (see Region::Close).
  Status Close(TimePoint deadline);

 private:
  std::vector<Region> regions_;
  std::vector<Place> places_;       ///< As the spans.
  std::vector<LocalSlice> slices_;  ///< As the spans.
};

}  // namespace weightcast::worker
