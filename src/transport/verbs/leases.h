#pragma once

#include <array>
#include <cstdint>

#include "transport/grant_table.h"
#include "transport/verbs/immediate.h"

namespace weightcast::transport::verbs {

/// The grants that one peer holds here, and the numbers by which its signals name them.
class Leases {
 public:
  [[nodiscard]] bool IsOpen(const GrantName& grant) const { return grants_.IsOpen(grant); }
  /// Of an open grant.
  [[nodiscard]] Lease Of(const GrantName& grant) const { return leases_[grant.slot]; }
  Status Open(const GrantName& grant) {
    WC_RETURN_IF_ERROR(grants_.Open(grant));
    do {
      last_ = static_cast<Lease>(last_ % (kLeases - 1) + 1);
    } while (holders_[last_].slot != 0);  // There are more leases than slots.
    leases_[grant.slot] = last_;
    holders_[last_] = grant;
    return Status::Ok();
  }
  void Close(const GrantName& grant) {
    if (grant.slot == 0 || !grants_.IsOpen(grant)) return;
    holders_[leases_[grant.slot]] = {};
    leases_[grant.slot] = 0;
    grants_.Close(grant);
  }
  /// The open grant that a signal names; nullptr: none.
  [[nodiscard]] const GrantName* Holder(Lease lease) const {
    const GrantName& grant = holders_[lease];
    return lease == 0 || grant.slot != 0 ? &grant : nullptr;  // holders_[0] is the standing grant.
  }

 private:
  GrantTable grants_;
  std::array<Lease, kGrantSlots> leases_{};
  std::array<GrantName, kLeases> holders_{};
  Lease last_ = 0;
};

}  // namespace weightcast::transport::verbs
