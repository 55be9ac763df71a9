#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/fd.h"
#include "memory/memory.h"
#include "transport/shm/device_side.h"
#include "transport/shm/layout.h"
#include "weightcast/status.h"

namespace weightcast::transport::shm {

/// A region of this process.
struct LocalRegion {
  RegionName name;
  Access access = Access::kLocal;
  std::byte* address = nullptr;
  uint64_t length = 0;
  UniqueFd fd;  ///< Maps it in a peer; invalid where that is impossible.
  uint64_t fd_offset = 0;
  bool live = false;
  std::shared_ptr<const DeviceRegion> device;  ///< Of device memory; null: host memory.
};

/// What Register returns and a peer's Import reads.
struct RegionKey {
  Access access = Access::kLocal;
  bool mappable = false;
  uint64_t address = 0;  ///< In the owner: cross-process copy names it to the kernel.
  uint64_t length = 0;
  MemoryKind kind = MemoryKind::kHost;
  DeviceUuid device{};  ///< All zero for host memory.
};
std::string EncodeKey(const RegionKey& key);
/// kProtocol for anything EncodeKey does not write.
Result<RegionKey> DecodeKey(std::string_view bytes);

/// The regions of one transport object. Add and Remove: any thread. The rest: the progress thread, which
/// has a table of its own, so that the data path takes no lock.
class Regions {
 public:
  Regions(Incarnation self, FencePage& fence) : self_(self), fence_(&fence) {}

  /// Populates the pages of host memory; returns the key. `device`: of device memory. Errors name what is
  /// wrong with the name or the memory.
  Result<std::string> Add(const RegionName& name, const DescribedMemory& memory, Access access,
                          std::shared_ptr<const DeviceRegion> device = nullptr);
  /// Forbids peers to touch it, at once. False: there is none.
  bool Remove(uint32_t id);

  /// The live region of that id, or nullptr. Valid until the next call.
  const LocalRegion* Find(uint32_t id);
  /// The same if it has this generation.
  const LocalRegion* Find(uint32_t id, uint32_t generation);
  /// Ids removed since the last call: their Deregistered is due once all peers are fenced.
  std::vector<uint32_t> TakeRemoved();
  /// After Deregistered: the id may be used again.
  void Forget(uint32_t id);
  [[nodiscard]] bool pending() const { return pending_.load(std::memory_order_seq_cst); }

 private:
  struct Change {
    bool add = false;
    uint32_t id = 0;
    LocalRegion region;
  };
  Status Check(const RegionName& name) const;
  void Refresh();

  Incarnation self_;
  FencePage* fence_;

  std::mutex mutex_;  ///< Guards the next two.
  std::vector<Change> changes_;
  std::unordered_set<uint32_t> ids_;
  std::unordered_set<uint32_t> removing_;
  std::atomic<bool> pending_{false};

  std::vector<LocalRegion> table_;  ///< By id.
  std::vector<uint32_t> removed_;
};

}  // namespace weightcast::transport::shm
