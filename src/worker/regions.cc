#include "worker/regions.h"

#include <algorithm>

namespace weightcast::worker {

Result<RegionSet> RegionSet::Register(Endpoint& endpoint, std::span<const std::span<std::byte>> spans,
                                      Access access, size_t gap) {
  std::vector<size_t> order;
  for (size_t i = 0; i < spans.size(); ++i)
    if (!spans[i].empty()) order.push_back(i);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return spans[a].data() < spans[b].data(); });
  RegionSet set;
  set.places_.resize(spans.size());
  set.slices_.resize(spans.size());
  for (size_t first = 0; first < order.size();) {
    std::byte* const begin = spans[order[first]].data();
    std::byte* end = begin;
    size_t next = first;
    while (next < order.size() && (next == first || spans[order[next]].data() <= end + gap)) {
      const auto& span = spans[order[next]];
      end = std::max(end, span.data() + span.size());
      set.places_[order[next++]] = {.region = static_cast<uint32_t>(set.regions_.size()),
                                    .offset = static_cast<uint64_t>(span.data() - begin)};
    }
    WC_ASSIGN_OR_RETURN(Region region, endpoint.Register({begin, end}, access));
    for (const size_t span : std::span(order).subspan(first, next - first)) {
      WC_ASSIGN_OR_RETURN(set.slices_[span], region.Slice(set.places_[span].offset, spans[span].size()));
    }
    set.regions_.push_back(std::move(region));
    first = next;
  }
  return set;
}

Status RegionSet::Close(TimePoint deadline) {
  Status result;
  for (auto& region : regions_)
    if (Status status = region.Close(deadline); !status.ok()) result = status;
  return result;
}

}  // namespace weightcast::worker
