#pragma once

#include <cstdint>
#include <vector>

#include "gpu/probe/driver.h"
#include "gpu/probe/peer.h"

/// A process that allocates device memory and exports it, and what others need to map that.
namespace probe {

inline constexpr uint64_t kPage = 2 * kMiB;  ///< Of memory in handles.

/// That process as the experiment sees it. Make it before this process uses the driver: both start up at
/// once.
class Exporter {
 public:
  explicit Exporter(int device) : peer_({"exporter", std::to_string(device)}) {}

  /// An allocation of cuMemAlloc, filled with the pattern of the seed.
  weightcast::drivers::CUipcMemHandle Allocate(uint64_t bytes, uint64_t seed);
  /// So many handles of kPage, filled alike. Then take their descriptors, in order, with TakePages.
  void Create(uint64_t pages, uint64_t seed);
  /// The next descriptors, at most kMostDescriptors; the caller closes them.
  std::vector<int> TakePages();
  /// Frees all it has allocated and created; false: the process has ended meanwhile.
  bool Free();
  /// How many words of its last allocation are not the pattern of this seed.
  uint64_t Differences(uint64_t seed);
  void Kill() { peer_.Kill(); }

 private:
  Peer peer_;
};

/// What such a process does, until its parent goes.
void RunExporter(int device);

/// Maps an allocation of another process; the device must be current.
CUdeviceptr OpenLegacy(const weightcast::drivers::CUipcMemHandle& handle);

/// Handles of another process in one range of addresses of this one.
class ImportedPages {
 public:
  ImportedPages(const Device& device, uint64_t pages);
  /// Maps the next pages and closes the descriptors. Ends the process on an error.
  void Map(const std::vector<int>& fds);
  /// Lets the device read, or read and write, all that is mapped.
  [[nodiscard]] CUresult Allow(weightcast::drivers::CUmemAccess_flags flags) const;
  [[nodiscard]] CUdeviceptr address() const { return address_; }
  [[nodiscard]] CUresult Unmap();

 private:
  const Device& device_;
  CUdeviceptr address_ = 0;
  uint64_t reserved_ = 0;
  uint64_t mapped_ = 0;
};

/// Properties of a handle on the device that can be exported in these ways.
weightcast::drivers::CUmemAllocationProp Exported(int device,
                                                  weightcast::drivers::CUmemAllocationHandleType types);

}  // namespace probe
