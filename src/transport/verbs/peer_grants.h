#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "transport/grant_table.h"
#include "transport/verbs/immediate.h"

namespace weightcast::transport::verbs {

/// The grants that this side holds at its peer, as far as the peer has told.
class PeerGrants {
 public:
  enum class State : uint8_t { kOpen, kClosed, kUnknown };

  [[nodiscard]] State Look(const GrantName& grant) const {
    if (GrantTable::IsStanding(grant)) return State::kOpen;
    if (grant.slot == 0 || grant.slot >= kGrantSlots || grant.id == 0) return State::kClosed;
    const Slot& slot = slots_[grant.slot];
    if (slot.open == grant.id) return State::kOpen;
    return slot.closed == grant.id || denied_ == grant ? State::kClosed : State::kUnknown;
  }
  /// Of an open grant.
  [[nodiscard]] Lease LeaseOf(const GrantName& grant) const { return slots_[grant.slot].lease; }
  /// Notes that the peer is asked about it; false: it has been asked already.
  bool Ask(const GrantName& grant) {
    if (std::ranges::find(asked_, grant) != asked_.end()) return false;
    asked_.push_back(grant);
    return true;
  }
  void Opened(const GrantName& grant, Lease lease) {
    slots_[grant.slot].open = grant.id;
    slots_[grant.slot].lease = lease;
    std::erase(asked_, grant);
  }
  /// It was not open when the peer was asked, and may be opened later: closed for what waits, until
  /// EndDenial.
  void Deny(const GrantName& grant) {
    denied_ = grant;
    std::erase(asked_, grant);
  }
  void EndDenial() { denied_ = {}; }
  /// Ids are never used again: what is closed once stays so.
  void Closed(const GrantName& grant) {
    Slot& slot = slots_[grant.slot];
    if (slot.open == grant.id) slot.open = 0;
    slot.closed = grant.id;
    std::erase(asked_, grant);
  }

 private:
  struct Slot {
    uint64_t open = 0;
    uint64_t closed = 0;  ///< The one that was closed last.
    Lease lease = 0;
  };
  std::array<Slot, kGrantSlots> slots_{};
  std::vector<GrantName> asked_;
  GrantName denied_;
};

}  // namespace weightcast::transport::verbs
