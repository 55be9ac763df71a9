#include "transport/shm/link_fences.h"

#include <utility>

#include "base/strings.h"

namespace weightcast::transport::shm {
namespace {

/// A copy engine may go on after its process has ended: the driver ends the channels of the dead within
/// milliseconds, and nothing tells when.
constexpr Duration kLatePushes = std::chrono::seconds(2);

}  // namespace

Status LinkFences::OpenGrant(const GrantName& grant, GrantReach ranges) {
  if (!link_.over()) return link_.inbox.OpenGrant(grant, std::move(ranges));
  return Error(Code::kUnavailable, "the link to ", link_.PeerName(), " is down; see its log, connect again");
}

void LinkFences::Revoke(const GrantName& grant) {
  const bool open = link_.inbox.CloseGrant(grant);
  revokes_.push_back({.grant = grant, .fence = Make(), .frees_slot = open});
  Settle();
}

bool LinkFences::Settle() {
  return std::erase_if(revokes_, [this](const PendingRevoke& revoke) {
           if (!Over(revoke.fence)) return false;
           if (revoke.frees_slot) link_.inbox.FreeSlot(revoke.grant.slot);
           link_.context.events.Push(Revoked{.link = link_.id, .grant = revoke.grant});
           return true;
         }) > 0;
}

LinkFences::Fence LinkFences::Make(uint32_t region) const {
  Fence fence = Make();
  // Nobody pushes to what was never offered to him, and who is gone has it no more but for late copies.
  if (link_.offers.Holds(region) || pushes_until_) fence.pushes = link_.inbox.DeviceFence();
  return fence;
}

bool LinkFences::Over(const Fence& fence) const {
  const Inbox& words = link_.inbox.shared();
  if (!gone_ && !fence.busy.Over(words.busy)) return false;
  if (!link_.engines.Over(fence.engines)) return false;
  return !fence.pushes || fence.pushes->Over(words.device_ended) || (gone_ && !pushes_until_);
}

void LinkFences::Close() {
  link_.inbox.CloseAll();
  closing_.emplace(Make());
  closing_->pushes = link_.inbox.DeviceFence();
}

void LinkFences::OnGone() {
  if (std::exchange(gone_, true)) return;
  link_.offers.Clear();
  // The end of a process does not end what its devices were copying.
  if (!link_.inbox.DeviceFence().Over(link_.inbox.shared().device_ended))
    pushes_until_ = Clock::now() + kLatePushes;
}

void LinkFences::OnTime(TimePoint now) {
  if (pushes_until_ && now >= *pushes_until_) pushes_until_.reset();
}

}  // namespace weightcast::transport::shm
