#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "memory/memory.h"

namespace weightcast::transport {

/// Region ids are small: tables of them are arrays.
inline constexpr uint32_t kMaxRegionId = 1U << 20;

/// Whether `length` bytes from `offset` on lie within `size` bytes.
inline bool InBounds(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

/// A region of this process as its holder of progress sees it.
struct OwnRegion {
  std::byte* base = nullptr;
  uint64_t length = 0;
  uint32_t id = 0;
  uint32_t generation = 0;
  Access access = Access::kLocal;
  bool live = false;  ///< Registered and not deregistered.
  uint32_t uses = 0;  ///< Own operations with it, and fences of peers that may still write to it.

  static OwnRegion Registered(const RegionName& name, const DescribedMemory& memory, Access access) {
    return {.base = memory.address,
            .length = memory.length,
            .id = name.id,
            .generation = name.generation,
            .access = access,
            .live = true,
            .uses = 0};
  }
};

/// All regions of this process that a transport knows, for the holder of progress. A Region is an OwnRegion
/// or more, and stays where it is as long as it has `uses`.
template <typename Region>
class RegionTable {
 public:
  /// `refresh` brings what other threads have registered meanwhile; it calls Add and Retire. `ended` is told
  /// of each region that is deregistered and that nothing uses any more.
  RegionTable(std::function<void()> refresh, std::function<void(Region&)> ended)
      : refresh_(std::move(refresh)), ended_(std::move(ended)) {}

  void Add(Region region) {
    if (region.id >= regions_.size()) regions_.resize(region.id + 1);
    auto& slot = regions_[region.id];
    if (slot == nullptr) slot = std::make_unique<Region>();
    *slot = std::move(region);
  }
  /// The live region of this id, or nullptr.
  Region* Find(uint32_t id) {
    if (Region* const found = Live(id); found != nullptr) return found;
    // A miss is rare; it may be another thread's registration that has not been brought here yet.
    refresh_();
    return Live(id);
  }
  /// The live region of this id and generation, or nullptr.
  Region* Find(uint32_t id, uint32_t generation) {
    Region* found = Live(id);
    if (found == nullptr || found->generation != generation) {
      refresh_();
      found = Live(id);
    }
    return found != nullptr && found->generation == generation ? found : nullptr;
  }
  /// Not live from here on, and used by the caller until Unuse. nullptr when it was not live.
  Region* Retire(uint32_t id) {
    Region* const region = Live(id);
    if (region == nullptr) return nullptr;
    region->live = false;
    ++region->uses;
    return region;
  }
  void Unuse(Region& region) {
    if (--region.uses == 0 && !region.live) ended_(region);
  }
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (const auto& region : regions_) {
      if (region != nullptr) visit(*region);
    }
  }

 private:
  Region* Live(uint32_t id) {
    return id < regions_.size() && regions_[id] != nullptr && regions_[id]->live ? regions_[id].get()
                                                                                 : nullptr;
  }

  std::vector<std::unique_ptr<Region>> regions_;
  std::function<void()> refresh_;
  std::function<void(Region&)> ended_;
};

}  // namespace weightcast::transport
