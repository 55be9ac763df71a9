#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "memory/memory.h"
#include "transport/types.h"
#include "transport/verbs/address.h"

namespace weightcast::transport::verbs {

/// Region ids are small: tables of them are arrays.
inline constexpr uint32_t kMaxRegionId = 1U << 20;

inline bool InBounds(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

/// A region of this process. Stays where it is as long as anything uses it.
struct LocalRegion {
  std::byte* base = nullptr;
  uint64_t length = 0;
  uint32_t id = 0;
  uint32_t generation = 0;
  Access access = Access::kLocal;
  bool live = false;  ///< Registered and not deregistered.
  uint32_t uses = 0;  ///< Own operations, and fences of peers that may still write to it.
  Parts parts;
  std::vector<ibv_mr*> registered;  ///< By NIC and part. Null: the NIC was dead.
};

/// A peer's region as this side knows it.
struct ImportedRegion {
  uint32_t id = 0;
  uint32_t generation = 0;  ///< 0: no import has this index.
  Access access = Access::kLocal;
  uint64_t base = 0;
  uint64_t length = 0;
  Parts parts;
  std::vector<uint32_t> rkeys;  ///< By the peer's NIC and part.
};

/// All regions of this process, for the holder of progress.
class Regions {
 public:
  /// `refresh` brings what other threads have registered meanwhile; it calls Add and Retire. `ended` is told
  /// of each region that is deregistered and that nothing uses any more.
  Regions(std::function<void()> refresh, std::function<void(LocalRegion&)> ended)
      : refresh_(std::move(refresh)), ended_(std::move(ended)) {}

  void Add(LocalRegion region) {
    if (region.id >= regions_.size()) regions_.resize(region.id + 1);
    auto& slot = regions_[region.id];
    if (slot == nullptr) slot = std::make_unique<LocalRegion>();
    *slot = std::move(region);
  }
  /// The live region of this id, or nullptr.
  LocalRegion* Find(uint32_t id) {
    if (LocalRegion* found = Live(id); found != nullptr) return found;
    refresh_();
    return Live(id);
  }
  /// Not live from here on, and used by the caller until Unuse. nullptr when it was not live.
  LocalRegion* Retire(uint32_t id) {
    LocalRegion* region = Live(id);
    if (region == nullptr) return nullptr;
    region->live = false;
    ++region->uses;
    return region;
  }
  void Unuse(LocalRegion& region) {
    if (--region.uses == 0 && !region.live) ended_(region);
  }
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (const auto& region : regions_) {
      if (region != nullptr) visit(*region);
    }
  }

 private:
  LocalRegion* Live(uint32_t id) {
    return id < regions_.size() && regions_[id] != nullptr && regions_[id]->live ? regions_[id].get()
                                                                                 : nullptr;
  }

  std::vector<std::unique_ptr<LocalRegion>> regions_;
  std::function<void()> refresh_;
  std::function<void(LocalRegion&)> ended_;
};

}  // namespace weightcast::transport::verbs
