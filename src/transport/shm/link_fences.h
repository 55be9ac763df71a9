#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "transport/shm/link_parts.h"
#include "weightcast/clock.h"

namespace weightcast::transport::shm {

/// What is taken back on one link until nothing lands in it any more: grants, regions, and the link itself.
class LinkFences {
 public:
  /// What may still touch this side's memory when it was made: copies by the peer's processor, copies by this
  /// side's own devices, and copies by the peer's devices into open memory.
  struct Fence {
    FenceWait busy;
    device::EngineFence engines;
    std::optional<DeviceFenceWait> pushes;  ///< Empty: none may touch it.
  };
  explicit LinkFences(LinkParts& link) : link_(link) {}

  Status OpenGrant(const GrantName& grant, GrantReach ranges);
  void Revoke(const GrantName& grant);
  /// The peer has a grant here.
  [[nodiscard]] bool granted() const { return link_.inbox.grants() > 0; }
  /// Tells the revokes that are over. True if there was one.
  bool Settle();
  [[nodiscard]] bool has_revokes() const { return !revokes_.empty(); }
  /// Of what a grant allows, to which nobody pushes.
  [[nodiscard]] Fence Make() const { return {link_.inbox.Fence(), link_.engines.Fence(), std::nullopt}; }
  /// Of a region that is deregistered.
  [[nodiscard]] Fence Make(uint32_t region) const;
  [[nodiscard]] bool Over(const Fence& fence) const;
  /// Takes everything back: over once `closed`.
  void Close();
  [[nodiscard]] bool closed() const { return closing_ && Over(*closing_); }

  /// Proven: the peer process runs no more.
  void OnGone();
  [[nodiscard]] bool gone() const { return gone_; }
  void OnTime(TimePoint now);
  /// When OnTime has something to do.
  [[nodiscard]] std::optional<TimePoint> due() const { return pushes_until_; }

 private:
  struct PendingRevoke {
    GrantName grant;
    Fence fence;
    bool frees_slot = false;
  };

  LinkParts& link_;
  std::vector<PendingRevoke> revokes_;
  std::optional<Fence> closing_;
  bool gone_ = false;
  std::optional<TimePoint> pushes_until_;  ///< So long the devices of a dead peer may go on.
};

}  // namespace weightcast::transport::shm
