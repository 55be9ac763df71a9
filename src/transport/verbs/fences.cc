#include "transport/verbs/fences.h"

#include <algorithm>
#include <utility>

#include "transport/other_release.h"

namespace weightcast::transport::verbs {
namespace {

/// What a peer may take back before the first of it is fenced.
constexpr size_t kMostBarriers = 1U << 16;

}  // namespace

Fences::~Fences() {
  for (const Fence& fence : fences_) {
    if (fence.region != nullptr) link_.shared.regions.Unuse(*fence.region);
  }
}

Status Fences::OpenGrant(const GrantName& grant) {
  if (link_.silent())
    return {Code::kUnavailable, "the link to this peer is down; see its log, and connect again"};
  WC_RETURN_IF_ERROR(link_.leases.Open(grant));
  link_.Say(GrantOpened{grant, link_.leases.Of(grant)});
  return Status::Ok();
}

void Fences::Revoke(const GrantName& grant) {
  link_.leases.Close(grant);  // No signal of it from here on.
  Fence fence{.number = ++last_fence_, .grant = grant, .region = nullptr, .deadline = {}};
  if (link_.silent()) return End(fence);
  link_.Say(RevokeGrant{grant, fence.number});
  Begin(fence);
}

void Fences::Forget(LocalRegion& region) {
  if (region.access == Access::kLocal || link_.silent()) return;
  ++region.uses;
  Fence fence{.number = ++last_fence_, .grant = {}, .region = &region, .deadline = {}};
  link_.Say(RegionOver{region.id, region.generation, fence.number});
  Begin(fence);
}

void Fences::Begin(Fence fence) {
  // Also through one that is offered: the peer may have its end already.
  const bool reachable =
      std::ranges::any_of(link_.lanes, [](const auto& lane) { return lane->has_queue(); }) ||
      std::ranges::any_of(pairs_.all(), [](const QueuePairs::Pair& pair) {
        return pair.stage == QueuePairs::Stage::kOffered;
      });
  if (!reachable) return End(fence);
  // A region's fence costs a late writer one lane; a grant's costs the peer all of them.
  fence.deadline = Clock::now() + link_.shared.settings.lease / (fence.region != nullptr ? 16 : 4);
  fences_.push_back(fence);
  link_.shared.next_step = TimePoint{};
}

void Fences::End(const Fence& fence) {
  if (fence.region != nullptr) return link_.shared.regions.Unuse(*fence.region);
  link_.shared.events.Push(Revoked{link_.terms.id, fence.grant});
}

void Fences::OnFenced(const Fenced& fenced) {
  const auto found = std::ranges::find(fences_, fenced.fence, &Fence::number);
  if (found == fences_.end()) return;  // Made by force meanwhile.
  const Fence fence = *found;
  fences_.erase(found);
  End(fence);
}

/// A region's key is taken out of the devices next, which fences by itself; a grant has no key.
void Fences::Step(TimePoint now) {
  const auto late = std::stable_partition(fences_.begin(), fences_.end(),
                                          [now](const Fence& fence) { return now < fence.deadline; });
  const std::vector<Fence> made(late, fences_.end());
  fences_.erase(late, fences_.end());
  const bool grant = std::ranges::any_of(made, [](const Fence& fence) { return fence.region == nullptr; });
  for (uint32_t queue = link_.rails(); grant && queue < pairs_.all().size(); ++queue) {
    pairs_.EndQueue(queue, {Code::kUnavailable,
                            "the peer did not confirm within a quarter of the lease that it stopped "
                            "writing; check that its process runs, and see its log"});
  }
  for (const Fence& fence : made) End(fence);
}

TimePoint Fences::NextStep() const {
  TimePoint next = TimePoint::max();
  for (const Fence& fence : fences_) next = std::min(next, fence.deadline);
  return next;
}

void Fences::EndAll() {
  for (const Fence& fence : std::exchange(fences_, {})) End(fence);
  barriers_.clear();
}

void Fences::OnRegionOver(const RegionOver& over) {
  if (over.id >= kMaxRegionId)
    return link_.GoDown(OtherRelease("the peer closed a region whose number cannot exist"));
  link_.imports.TakeBack(over.id, over.generation);
  BeginBarrier(over.fence);
}

void Fences::BeginBarrier(uint64_t number) {
  if (barriers_.size() >= kMostBarriers) {
    return link_.GoDown(OtherRelease("the peer closed more regions than it can have opened"));
  }
  // First what waits is refused, so that nothing more is posted under what was taken back.
  link_.PumpLanes();
  Barrier barrier{.fence = number, .lanes = {}};
  for (uint32_t i = 0; i < link_.lanes.size(); ++i) {
    barrier.lanes.push_back(
        {.generation = pairs_.all()[link_.rails() + i].number, .posted = link_.lanes[i]->posted()});
  }
  barriers_.push_back(std::move(barrier));
  LookAtBarriers();
}

bool Fences::Done(const Barrier& barrier) const {
  for (uint32_t i = 0; i < link_.lanes.size(); ++i) {
    const QueuePairs::Pair& pair = pairs_.all()[link_.rails() + i];
    const Barrier::Mark& mark = barrier.lanes[i];
    if (pair.number != mark.generation || pair.stage == QueuePairs::Stage::kOver) continue;
    if (pair.stage == QueuePairs::Stage::kEnding || !link_.lanes[i]->HasDone(mark.posted)) return false;
  }
  return true;
}

void Fences::LookAtBarriers() {
  while (!barriers_.empty() && Done(barriers_.front())) {
    const uint64_t fence = barriers_.front().fence;
    barriers_.erase(barriers_.begin());
    link_.Say(Fenced{fence});
  }
}

}  // namespace weightcast::transport::verbs
