#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/buffer.h"
#include "protocol/messages.h"
#include "weightcast/endpoint.h"
#include "weightcast/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"
#include "worker/device_memory.h"
#include "worker/region_set.h"
#include "worker/registration.h"

namespace weightcast::worker {

/// What an inference rank has registered: the live tensors and where bytes land. Immutable but for the
/// bytes themselves.
class LandingMemory {
 public:
  /// Registers where each shard lands: the tensors themselves (in place, loader), or a spare buffer that it
  /// allocates (shadow). Refuses what no plan can use or what is not contiguous, and shadow landing where an
  /// update comes in several parts; errors name the tensor. `parts`: with which part each shard comes.
  static Result<std::shared_ptr<LandingMemory>> Register(Endpoint& endpoint, std::vector<Shard> shards,
                                                         LandingMode mode, PartsOfShards parts = {},
                                                         const Settings& settings = Settings());

  [[nodiscard]] const std::vector<Shard>& shards() const { return shards_; }
  /// Whether a shard lands so, of those that are sent.
  [[nodiscard]] bool Has(LandingMode mode) const;
  /// Whether a writer that is stopped holds a spare buffer at most: another one can take its place.
  [[nodiscard]] bool replaceable() const { return shadow_bytes() > 0 && all_shadow_; }
  /// Index of the shard of that tensor and box, of equal ones that with `copy` before it; -1 if there is
  /// none.
  [[nodiscard]] int Find(const TensorInfo& tensor, const Box& box, uint32_t copy) const;
  /// In how many parts an update comes.
  [[nodiscard]] uint32_t parts() const { return parts_.count; }
  /// With which of them a shard comes.
  [[nodiscard]] uint32_t PartOf(size_t shard) const {
    return parts_.of_shard.empty() ? 0 : parts_.of_shard[shard];
  }
  /// Where the bytes of a shard land.
  [[nodiscard]] std::byte* LandingOf(size_t shard) const { return landing_[shard]; }
  /// The same, as grants name it.
  [[nodiscard]] const LocalSlice& SliceOf(size_t shard) const { return regions_.slices()[shard]; }
  [[nodiscard]] DeviceMemories& devices() const { return *devices_; }
  /// "name: in_place", a line for each tensor.
  [[nodiscard]] std::vector<std::string> Describe() const;
  /// For the message LandingMap.
  [[nodiscard]] protocol::LandingMap Map() const;
  /// Whether these are the same boxes of the same tensors at the same addresses, in whatever order.
  [[nodiscard]] bool SameMemory(const std::vector<Shard>& others) const;
  /// Copies what lands in the spare buffer into the live tensors: what lies on a device by that device,
  /// waited for. kInternal where one fails.
  /// `compares`: both copies, of host memory each block while it is in the cache, of devices' memory the
  /// digests. kCorrupt, naming the tensor, if they differ: somebody else writes to the live tensors, or the
  /// memory is faulty.
  [[nodiscard]] Status CopyToLive(bool compares = false) const;
  /// Shadow only: bytes of the spare buffer.
  [[nodiscard]] size_t shadow_bytes() const { return shadow_bytes_; }
  /// No peer may write any more afterwards. kTimedOut while one that is stopped still might.
  Status Close(TimePoint deadline) { return regions_.Close(deadline); }

 private:
  Status MakeShadow();
  Result<std::byte*> AllocateShadow(int device, size_t bytes);
  [[nodiscard]] Status CopyOnDevices() const;
  [[nodiscard]] Status CompareOnDevices() const;

  std::vector<Shard> shards_;
  PartsOfShards parts_;
  bool all_shadow_ = false;  ///< All that is sent.
  std::unordered_map<uint64_t, size_t> by_key_;
  std::shared_ptr<DeviceMemories> devices_;
  std::shared_ptr<SharedBuffer> shadow_;                         ///< Outlives the registration, as the next.
  std::vector<std::unique_ptr<device::Buffer>> device_shadows_;  ///< One for each device.
  size_t shadow_bytes_ = 0;
  std::vector<std::byte*> landing_;  ///< As shards_; null where nothing lands.
  RegionSet regions_;
};

}  // namespace weightcast::worker
