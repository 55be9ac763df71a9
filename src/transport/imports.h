#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "transport/types.h"

namespace weightcast::transport {

/// The peer's regions that one link has imported. Region::generation is 0 where there is none.
template <typename Region>
class Imports {
 public:
  void Add(uint32_t index, Region region) {
    if (index >= regions_.size()) regions_.resize(index + 1);
    regions_[index] = std::move(region);
  }
  /// nullptr: there is none.
  [[nodiscard]] const Region* Find(RemoteRegion region) const {
    const auto index = static_cast<size_t>(region);
    return index < regions_.size() && regions_[index].generation != 0 ? &regions_[index] : nullptr;
  }
  /// False: there is none.
  bool Remove(RemoteRegion region) {
    if (Find(region) == nullptr) return false;
    regions_[static_cast<size_t>(region)] = {};
    return true;
  }
  [[nodiscard]] std::vector<Region>& all() { return regions_; }

 private:
  std::vector<Region> regions_;
};

}  // namespace weightcast::transport
