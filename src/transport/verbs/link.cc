#include "transport/verbs/link.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast::transport::verbs {
namespace {

/// What a peer may take back before the first of it is fenced.
constexpr size_t kMostBarriers = 1U << 16;

}  // namespace

// --- Traffic

size_t Link::Post(uint32_t lane, std::span<const Op> ops) {
  if (state_ != State::kReady || lane >= lanes_.size()) return 0;
  Lane& target = *lanes_[lane];
  size_t taken = 0;
  while (taken < ops.size() && target.HasRoom() && !shared_.events.full()) target.Push(ops[taken++]);
  if (taken > 0) target.Pump();
  return taken;
}

void Link::Touch() {
  if (std::exchange(touched_, true)) return;
  shared_.touched.push_back(terms_.id);
}

void Link::Continue() {
  touched_ = false;
  EndBroken();
  PumpLanes();
  LookAtBarriers();
}

void Link::PumpLanes() {
  for (const auto& lane : lanes_) {
    if (state_ == State::kReady) lane->Pump();  // One that breaks may take the link with it.
  }
}

// --- Messages

void Link::Say(const ControlMessage& message) {
  if (control_->Send(message)) return;
  GoDown({Code::kExhausted, StrCat("the peer does not take its control messages", kSeePeer)});
}

void Link::OnControl(const ControlMessage& message) {
  peer_gone_ = peer_gone_ || std::holds_alternative<Bye>(message);
  if (closed_ || state_ == State::kDown) return;
  if (std::holds_alternative<Start>(message)) {
    OnStart();
  } else if (std::holds_alternative<Started>(message)) {
    OnStarted();
  } else if (const auto* opened = std::get_if<GrantOpened>(&message)) {
    grants_.Opened(opened->grant, opened->lease);
    Touch();
  } else if (const auto* ask = std::get_if<AskGrant>(&message)) {
    if (leases_.IsOpen(ask->grant)) {
      Say(GrantOpened{ask->grant, leases_.Of(ask->grant)});
    } else {
      Say(GrantClosed{ask->grant});
    }
  } else if (const auto* closed = std::get_if<GrantClosed>(&message)) {
    grants_.Deny(closed->grant);
    PumpLanes();
    grants_.EndDenial();
  } else if (const auto* revoke = std::get_if<RevokeGrant>(&message)) {
    grants_.Closed(revoke->grant);
    BeginBarrier(revoke->fence);
  } else if (const auto* over = std::get_if<RegionOver>(&message)) {
    OnRegionOver(*over);
  } else if (const auto* fenced = std::get_if<Fenced>(&message)) {
    const auto found = std::ranges::find(fences_, fenced->fence, &Fence::number);
    if (found == fences_.end()) return;  // Made by force meanwhile.
    const Fence fence = *found;
    fences_.erase(found);
    EndFence(fence);
  } else if (const auto* queue_over = std::get_if<QueueOver>(&message)) {
    OnQueueOver(*queue_over);
  } else if (const auto* offer = std::get_if<QueueOffer>(&message)) {
    OnQueueOffer(*offer);
  } else if (const auto* answer = std::get_if<QueueAnswer>(&message)) {
    OnQueueAnswer(*answer);
  } else if (const auto* address = std::get_if<NewAddress>(&message)) {
    OnNewAddress(*address);
  } else {
    GoDown({Code::kUnavailable, "the peer has closed the link; see its log"});
  }
}

void Link::OnRegionOver(const RegionOver& over) {
  if (over.id >= kMaxRegionId)
    return GoDown(
        {Code::kProtocol, StrCat("the peer closed a region whose number cannot exist", kSameRelease)});
  imports_.TakeBack(over.id, over.generation);
  BeginBarrier(over.fence);
}

// --- Grants and fences

void Link::AskFor(const GrantName& grant) {
  if (grants_.Ask(grant)) Say(AskGrant{grant});
}

Status Link::OpenGrant(const GrantName& grant, const GrantReach& /*ranges*/) {
  if (state_ == State::kDown || control_ == nullptr)
    return {Code::kUnavailable, "the link to this peer is down; connect again"};
  WC_RETURN_IF_ERROR(leases_.Open(grant));
  Say(GrantOpened{grant, leases_.Of(grant)});
  return Status::Ok();
}

void Link::Revoke(const GrantName& grant) {
  leases_.Close(grant);  // No signal of it from here on.
  Fence fence{.number = ++last_fence_, .grant = grant, .region = nullptr, .deadline = {}};
  if (state_ == State::kDown || control_ == nullptr) return EndFence(fence);
  Say(RevokeGrant{grant, fence.number});
  BeginFence(fence);
}

void Link::Forget(LocalRegion& region) {
  if (region.access == Access::kLocal || state_ == State::kDown || control_ == nullptr) return;
  ++region.uses;
  Fence fence{.number = ++last_fence_, .grant = {}, .region = &region, .deadline = {}};
  Say(RegionOver{region.id, region.generation, fence.number});
  BeginFence(fence);
}

void Link::BeginFence(Fence fence) {
  // Also through one that is offered: the peer may have its end already.
  const bool reachable = std::ranges::any_of(lanes_, [](const auto& lane) { return lane->has_queue(); }) ||
                         std::ranges::any_of(recoveries_, [](const Recovery& recovery) {
                           return recovery.stage == Stage::kOffered;
                         });
  if (!reachable || state_ == State::kDown) return EndFence(fence);
  // A region's fence costs a late writer one lane; a grant's costs the peer all of them.
  fence.deadline = Clock::now() + shared_.settings.lease / (fence.region != nullptr ? 16 : 4);
  fences_.push_back(fence);
  shared_.next_step = TimePoint{};
}

void Link::EndFence(const Fence& fence) {
  if (fence.region != nullptr) return shared_.regions.Unuse(*fence.region);
  shared_.events.Push(Revoked{terms_.id, fence.grant});
}

/// A region's key is taken out of the devices next, which fences by itself; a grant has no key.
void Link::MakeFences(TimePoint now) {
  const auto late = std::stable_partition(fences_.begin(), fences_.end(),
                                          [now](const Fence& fence) { return now < fence.deadline; });
  const std::vector<Fence> made(late, fences_.end());
  fences_.erase(late, fences_.end());
  const bool grant = std::ranges::any_of(made, [](const Fence& fence) { return fence.region == nullptr; });
  for (uint32_t queue = rails(); grant && queue < recoveries_.size() && state_ != State::kDown; ++queue) {
    EndQueue(queue, {Code::kUnavailable,
                     "the peer did not answer within a quarter of the lease that it has stopped writing; "
                     "check that its process runs, and see its log"});
  }
  for (const Fence& fence : made) EndFence(fence);
}

void Link::BeginBarrier(uint64_t number) {
  if (barriers_.size() >= kMostBarriers) {
    return GoDown(
        {Code::kProtocol, StrCat("the peer closed more regions than it can have opened", kSameRelease)});
  }
  // First what waits is refused, so that nothing more is posted under what was taken back.
  PumpLanes();
  Barrier barrier{.fence = number, .lanes = {}};
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    barrier.lanes.push_back({.generation = recoveries_[rails() + i].number, .posted = lanes_[i]->posted()});
  }
  barriers_.push_back(std::move(barrier));
  LookAtBarriers();
}

void Link::LookAtBarriers() {
  const auto done = [this](const Barrier& barrier) {
    for (uint32_t i = 0; i < lanes_.size(); ++i) {
      const Recovery& recovery = recoveries_[rails() + i];
      const Barrier::Mark& mark = barrier.lanes[i];
      if (recovery.number != mark.generation || recovery.stage == Stage::kOver) continue;
      if (recovery.stage == Stage::kEnding || !lanes_[i]->HasDone(mark.posted)) return false;
    }
    return true;
  };
  while (!barriers_.empty() && done(barriers_.front())) {
    const uint64_t fence = barriers_.front().fence;
    barriers_.erase(barriers_.begin());
    Say(Fenced{fence});
  }
}

// --- The end

void Link::GoDown(Status reason) {
  if (state_ == State::kDown || going_down_) return;
  going_down_ = std::move(reason);
  Touch();
}

void Link::TakeDown(const Status& reason) {
  if (state_ == State::kDown) return;
  state_ = State::kDown;
  offered_.clear();
  for (uint32_t queue = 0; queue < recoveries_.size(); ++queue) DestroyQueue(queue, reason);
  for (const auto& lane : lanes_) lane->Settle(Code::kUnavailable, /*peer_alive=*/false);
  for (const Fence& fence : std::exchange(fences_, {})) EndFence(fence);
  barriers_.clear();
  shared_.events.Push(LinkDown{terms_.id, reason});
}

void Link::Close() {
  const bool says_bye = state_ != State::kDown && control_ != nullptr && control_->any_open();
  if (says_bye) Say(Bye{});
  closed_ = true;
  offered_.clear();
  for (const auto& lane : lanes_) lane->Close(Code::kCancelled);
  for (Recovery& recovery : recoveries_) recovery.waiting.reset();
  if (!says_bye) Leave();
  for (const Fence& fence : std::exchange(fences_, {})) EndFence(fence);
  barriers_.clear();
  state_ = State::kDown;
}

/// Nobody is there to receive a shutdown message.
void Link::Leave() {
  for (uint32_t rail = 0; rail < rails(); ++rail) control_->Break(rail);
}

// --- Time

void Link::Step(TimePoint now) {
  if (closed_ || state_ == State::kDown) return;
  if (state_ != State::kReady) {
    if (now < terms_.deadline) return EndSilent(now);
    return GoDown({Code::kTimedOut,
                   "the RDMA link was not ready within half of connect_timeout; check that the NICs of both "
                   "hosts reach each other (GID, P_Key, subnet, firewall)"});
  }
  if (!fences_.empty()) MakeFences(now);
  for (uint32_t queue = 0; queue < recoveries_.size(); ++queue) {
    Recovery& recovery = recoveries_[queue];
    if (recovery.stage == Stage::kOver && recovery.backoff.Take(now)) OfferNext(queue);
    if (AwaitsProbe(recovery) && now >= recovery.backoff.begun() + shared_.settings.lease) {
      EndQueue(queue, {Code::kUnavailable,
                       StrCat("the peer did not confirm this queue pair within a lease", kSeePeer)});
    }
  }
}

TimePoint Link::NextStep() const {
  if (closed_ || state_ == State::kDown) return TimePoint::max();
  if (state_ == State::kProbing) return std::min(patience_, terms_.deadline);
  if (state_ != State::kReady) return terms_.deadline;
  TimePoint next = TimePoint::max();
  for (const Fence& fence : fences_) next = std::min(next, fence.deadline);
  for (const Recovery& recovery : recoveries_) {
    if (recovery.stage == Stage::kOver) next = std::min(next, recovery.backoff.again());
    if (AwaitsProbe(recovery)) next = std::min(next, recovery.backoff.begun() + shared_.settings.lease);
  }
  return next;
}

}  // namespace weightcast::transport::verbs
