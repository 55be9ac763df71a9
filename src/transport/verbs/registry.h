#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/task_thread.h"
#include "memory/memory.h"
#include "transport/registry.h"
#include "transport/verbs/gpu_memory.h"
#include "transport/verbs/local_region.h"
#include "transport/verbs/nic.h"
#include "transport/verbs/peer_regions.h"

namespace weightcast::transport::verbs {

/// A region's memory has been taken out of the NICs, but for those that do not let go of it.
struct RegionOut {
  struct Kept {
    size_t nic = 0;
    std::string why;
  };
  uint32_t id = 0;
  std::vector<Kept> kept;
};

/// Memory registered in every NIC, the names of regions and the commands of this transport. All functions are
/// thread safe.
class Registry : public RegistryOf<LocalRegion, ImportedRegion, RegionOut> {
 public:
  using Nics = std::span<const std::unique_ptr<Nic>>;
  explicit Registry(const Settings& settings) : gpu_memory_(settings) {}
  Status Create(Nics nics);

  // --- Any thread
  /// The key for peers. Device memory may block in the driver.
  Result<std::string> Register(const RegionName& name, const DescribedMemory& memory, Access access);
  Result<RemoteRegion> Import(LinkId link, const RegionName& name, uint64_t length, std::string_view key);

  // --- The holder of progress
  /// Takes its memory out of the NICs. nullopt: that takes long, or asks the device's driver; another thread
  /// does it, and leaves the outcome as a command.
  std::optional<RegionOut> TakeOut(LocalRegion& region);

 private:
  /// As few parts as all NICs take.
  [[nodiscard]] Result<Parts> Cut(uint64_t length) const;
  /// `prepared`: of device memory; null: host memory.
  Result<std::vector<ibv_mr*>> RegisterEverywhere(const DescribedMemory& memory, const Parts& parts,
                                                  Access access, const PreparedMemory* prepared) const;
  Status Claim(uint32_t id);

  /// Every page is unpinned, in every NIC: about 10 ms, and progress may be held so long.
  static constexpr uint64_t kSoon = 64U << 20;
  [[nodiscard]] RegionOut DeregisterEverywhere(uint32_t id, const Parts& parts,
                                               const std::vector<ibv_mr*>& registered) const;

  Nics nics_;
  GpuMemory gpu_memory_;
  TaskThread deregistering_{"wc-deregister"};  ///< Last: its tasks use the others.
};

}  // namespace weightcast::transport::verbs
