#include "transport/tcp/region_table.h"

#include <algorithm>

namespace weightcast::transport::tcp {

void RegionTable::Add(const RegionName& name, const Memory& memory, Access access) {
  if (name.id >= regions_.size()) regions_.resize(name.id + 1);
  auto& slot = regions_[name.id];
  if (slot == nullptr) slot = std::make_unique<LocalRegion>();
  *slot = {.base = memory.address,
           .length = memory.length,
           .id = name.id,
           .generation = name.generation,
           .access = access,
           .live = true,
           .uses = 0};
}

LocalRegion* RegionTable::Find(uint32_t id) {
  LocalRegion* region = At(id);
  if (region == nullptr || !region->live) {
    refresh_();
    region = At(id);
  }
  return region != nullptr && region->live ? region : nullptr;
}

LocalRegion* RegionTable::Find(uint32_t id, uint32_t generation) {
  const auto matches = [&](const LocalRegion* region) {
    return region != nullptr && region->live && region->generation == generation;
  };
  // A miss is rare; it may be another thread's registration that has not been brought here yet.
  if (!matches(At(id))) refresh_();
  return matches(At(id)) ? At(id) : nullptr;
}

LocalRegion* RegionTable::Retire(uint32_t id) {
  LocalRegion* region = At(id);
  if (region == nullptr || !region->live) return nullptr;
  region->live = false;
  return region;
}

void RegionTable::EndIfUnused(const LocalRegion& region) {
  if (!region.live && region.uses == 0) ended_(region.id);
}

void RegionTable::Unuse(LocalRegion& region) {
  --region.uses;
  EndIfUnused(region);
}

}  // namespace weightcast::transport::tcp
