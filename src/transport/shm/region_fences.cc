#include "transport/shm/region_fences.h"

#include <algorithm>
#include <utility>

namespace weightcast::transport::shm {

void RegionFences::Add(uint32_t region, std::span<Link* const> links) {
  Waiting waiting{.region = region, .fences = {}};
  for (Link* link : links) {
    waiting.fences.emplace_back(link, link->fences().Make(region));
    link->devices().offers().Drop(region);
  }
  waiting_.push_back(std::move(waiting));
}

bool RegionFences::Settle(std::span<Link* const> links) {
  const auto over = [](const auto& fence) { return fence.first->fences().Over(fence.second); };
  const auto settled = [&](Waiting& waiting) {
    std::erase_if(waiting.fences, over);
    if (!waiting.fences.empty() || Held(waiting.region, links)) return false;
    context_.regions.Forget(waiting.region);
    context_.events.Push(Deregistered{.region = waiting.region});
    return true;
  };
  return std::erase_if(waiting_, settled) > 0;
}

bool RegionFences::Held(uint32_t region, std::span<Link* const> links) const {
  return std::ranges::any_of(links,
                             [region](Link* link) { return link->devices().offers().Holds(region); }) ||
         std::ranges::any_of(departed_, [region](const DepartedPeer& peer) { return peer.Holds(region); });
}

void RegionFences::OnClosed(Link& link) {
  for (Waiting& waiting : waiting_) {
    std::erase_if(waiting.fences, [&link](const auto& fence) { return fence.first == &link; });
  }
  if (auto departed = link.devices().Depart(link.fences().gone()); departed)
    departed_.push_back(std::move(*departed));
}

void RegionFences::HearDeparted() {
  std::erase_if(departed_, [this](DepartedPeer& peer) { return peer.Look(context_.poller); });
}

}  // namespace weightcast::transport::shm
