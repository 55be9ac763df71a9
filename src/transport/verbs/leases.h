#pragma once

#include <array>
#include <cstdint>

#include "transport/grant_table.h"
#include "transport/verbs/immediate.h"

namespace weightcast::transport::verbs {

/// The grants that one peer holds here, and the numbers by which its signals name them. Small: there is one
/// for each peer.
class Leases {
 public:
  [[nodiscard]] bool IsOpen(const GrantName& grant) const { return grants_.IsOpen(grant); }
  /// Of an open grant.
  [[nodiscard]] Lease Of(const GrantName& grant) const { return leases_[grant.slot]; }
  Status Open(const GrantName& grant) {
    WC_RETURN_IF_ERROR(grants_.Open(grant, nullptr));
    do {
      last_ = static_cast<Lease>(last_ % (kLeases - 1) + 1);
    } while (slots_[last_] != 0);  // There are more leases than slots.
    leases_[grant.slot] = last_;
    slots_[last_] = static_cast<uint8_t>(grant.slot);
    holders_[grant.slot] = grant;
    return Status::Ok();
  }
  void Close(const GrantName& grant) {
    if (grant.slot == 0 || !grants_.IsOpen(grant)) return;
    slots_[leases_[grant.slot]] = 0;
    leases_[grant.slot] = 0;
    grants_.Close(grant);
  }
  /// The open grant that a signal names; nullptr: none.
  [[nodiscard]] const GrantName* Holder(Lease lease) const {
    const uint8_t slot = slots_[lease];
    return lease == 0 || slot != 0 ? &holders_[slot] : nullptr;  // holders_[0] is the standing grant.
  }

 private:
  static_assert(kGrantSlots <= 256);
  GrantTable grants_;
  std::array<Lease, kGrantSlots> leases_{};
  std::array<GrantName, kGrantSlots> holders_{};
  std::array<uint8_t, kLeases> slots_{};  ///< By lease; 0: it is free.
  Lease last_ = 0;
};

}  // namespace weightcast::transport::verbs
