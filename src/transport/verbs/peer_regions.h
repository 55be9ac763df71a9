#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "transport/imports.h"
#include "transport/verbs/address.h"

namespace weightcast::transport::verbs {

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

/// What one link has imported, and what its peer has taken back.
class PeerRegions : public Imports<ImportedRegion> {
 public:
  void Add(uint32_t index, ImportedRegion region) {
    // Taken back before it was imported: it is known, and nothing may be done with it.
    if (region.id < over_.size() && over_[region.id] >= region.generation) region.access = Access::kLocal;
    Imports::Add(index, std::move(region));
  }
  /// `id` is below kMaxRegionId.
  void TakeBack(uint32_t id, uint32_t generation) {
    if (id >= over_.size()) over_.resize(id + 1);
    over_[id] = std::max(over_[id], generation);
    for (ImportedRegion& import : all()) {
      if (import.id == id && import.generation == generation) import.access = Access::kLocal;
    }
  }

 private:
  std::vector<uint32_t> over_;  ///< By id: the last generation that the peer has taken back.
};

}  // namespace weightcast::transport::verbs
