#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "transport/types.h"
#include "transport/write_ranges.h"
#include "weightcast/status.h"

namespace weightcast::transport {

/// The grants that one peer holds here.
class GrantTable {
 public:
  static bool IsStanding(const GrantName& grant) { return grant == GrantName{}; }

  [[nodiscard]] bool IsOpen(const GrantName& grant) const {
    if (grant.slot == 0) return grant.id == 0;
    return grant.slot < kGrantSlots && grant.id != 0 && ids_[grant.slot] == grant.id;
  }
  /// Of an open grant: whether it opens these bytes.
  [[nodiscard]] bool Covers(const GrantName& grant, uint32_t region, uint32_t generation, uint64_t offset,
                            uint64_t length) const {
    const auto& ranges = ranges_[grant.slot];
    return ranges == nullptr || ranges->Cover(region, generation, offset, length);
  }
  /// `ranges`: what it opens; null: everything.
  Status Open(const GrantName& grant, GrantReach ranges) {
    if (grant.slot == 0 || grant.slot >= kGrantSlots || grant.id == 0) {
      return Error(Code::kInvalidArgument, "a grant has a slot from 1 to ", kGrantSlots - 1,
                   " and an id, not slot ", grant.slot, " and id ", grant.id, kReportBug);
    }
    uint64_t& id = ids_[grant.slot];
    if (id != 0) return Error(Code::kExhausted, "grant slot ", grant.slot, " is in use", kReportBug);
    id = grant.id;
    ranges_[grant.slot] = std::move(ranges);
    return Status::Ok();
  }
  void Close(const GrantName& grant) {
    if (grant.slot == 0 || !IsOpen(grant)) return;
    ids_[grant.slot] = 0;
    ranges_[grant.slot].reset();
  }

 private:
  std::array<uint64_t, kGrantSlots> ids_{};
  std::array<GrantReach, kGrantSlots> ranges_;
};

}  // namespace weightcast::transport
