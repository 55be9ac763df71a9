#include "worker/region_set.h"

#include <algorithm>
#include <tuple>

#include "worker/device_memory.h"

namespace weightcast::worker {
namespace {

std::byte* EndOf(const Memory& memory) { return memory.address + memory.length; }

}  // namespace

Result<RegionSet> RegionSet::Register(Endpoint& endpoint, std::span<const Memory> spans, Access access,
                                      size_t gap, DeviceMemories& devices) {
  std::vector<size_t> order;
  for (size_t i = 0; i < spans.size(); ++i)
    if (spans[i].length > 0) order.push_back(i);
  std::ranges::sort(order, {}, [&](size_t i) { return std::tuple(spans[i].device, spans[i].address); });
  RegionSet set;
  set.places_.resize(spans.size());
  set.slices_.resize(spans.size());
  for (size_t first = 0; first < order.size();) {
    Memory run = spans[order[first]];
    const std::byte* limit = nullptr;  // Of what may share its region; null: none.
    if (run.kind == MemoryKind::kDevice) {
      WC_ASSIGN_OR_RETURN(const Allocation allocation, devices.AllocationOf(run));
      limit = allocation.base + allocation.length;
    }
    const auto shares = [&](const Memory& span) {
      return span.kind == run.kind && span.device == run.device && span.address <= EndOf(run) + gap &&
             (limit == nullptr || EndOf(span) <= limit);
    };
    size_t next = first;
    while (next < order.size() && (next == first || shares(spans[order[next]]))) {
      const Memory& span = spans[order[next]];
      set.places_[order[next++]] = {.region = static_cast<uint32_t>(set.regions_.size()),
                                    .offset = static_cast<uint64_t>(span.address - run.address)};
      run.length = static_cast<uint64_t>(std::max(EndOf(run), EndOf(span)) - run.address);
    }
    WC_ASSIGN_OR_RETURN(Region region, endpoint.Register(run, access));
    for (const size_t span : std::span(order).subspan(first, next - first)) {
      WC_ASSIGN_OR_RETURN(set.slices_[span], region.Slice(set.places_[span].offset, spans[span].length));
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
