#pragma once

#include <array>
#include <cstdint>

#include "base/advice.h"
#include "base/strings.h"
#include "transport/types.h"
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
  Status Open(const GrantName& grant) {
    if (grant.slot == 0 || grant.slot >= kGrantSlots || grant.id == 0) {
      return {Code::kInvalidArgument,
              StrCat("a grant has a slot from 1 to ", kGrantSlots - 1, " and an id, not slot ", grant.slot,
                     " and id ", grant.id, kReportBug)};
    }
    uint64_t& id = ids_[grant.slot];
    if (id != 0) return {Code::kExhausted, StrCat("grant slot ", grant.slot, " is in use; revoke it first")};
    id = grant.id;
    return Status::Ok();
  }
  void Close(const GrantName& grant) {
    if (grant.slot != 0 && IsOpen(grant)) ids_[grant.slot] = 0;
  }

 private:
  std::array<uint64_t, kGrantSlots> ids_{};
};

}  // namespace weightcast::transport
