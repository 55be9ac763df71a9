#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "memory/memory.h"
#include "transport/types.h"

namespace weightcast::transport::tcp {

/// Region ids are small: the table is an array.
inline constexpr uint32_t kMaxRegionId = 1U << 20;

/// A region of this process as lanes see it. Stays where it is as long as anything uses it.
struct LocalRegion {
  std::byte* base = nullptr;
  uint64_t length = 0;
  uint32_t id = 0;
  uint32_t generation = 0;
  Access access = Access::kLocal;
  bool live = false;  ///< Registered and not deregistered.
  uint32_t uses = 0;  ///< Own operations that have it as source or landing place.
};

inline bool InBounds(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

/// All regions, for the thread that drives progress.
class RegionTable {
 public:
  /// `refresh` brings what other threads have registered meanwhile; it calls Add and Retire. `ended` is
  /// told of each region that is deregistered and that nothing uses any more.
  RegionTable(std::function<void()> refresh, std::function<void(uint32_t id)> ended)
      : refresh_(std::move(refresh)), ended_(std::move(ended)) {}

  void Add(const RegionName& name, const Memory& memory, Access access);
  /// The live region of this id, or nullptr.
  LocalRegion* Find(uint32_t id);
  /// The live region of this id and generation, or nullptr.
  LocalRegion* Find(uint32_t id, uint32_t generation);
  /// Not live from here on. nullptr when it was not; else EndIfUnused must follow.
  LocalRegion* Retire(uint32_t id);
  void EndIfUnused(const LocalRegion& region);
  /// An own operation that used it is over.
  void Unuse(LocalRegion& region);

 private:
  LocalRegion* At(uint32_t id) { return id < regions_.size() ? regions_[id].get() : nullptr; }

  std::vector<std::unique_ptr<LocalRegion>> regions_;
  std::function<void()> refresh_;
  std::function<void(uint32_t)> ended_;
};

}  // namespace weightcast::transport::tcp
