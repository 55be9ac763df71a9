#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "device/blocking_copies.h"
#include "device/devices.h"
#include "memory/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"
#include "worker/device_kernels.h"
#include "worker/gather.h"

namespace weightcast::worker {

/// The devices that a rank's shards lie on, for threads that may block in the driver. Loads the driver's
/// library when it is first asked. Thread safe.
class DeviceMemories {
 public:
  explicit DeviceMemories(Settings settings) : settings_(std::move(settings)), kernels_(settings_) {}

  /// kUnavailable where there is no driver, no such device or the setting `gpu` is off.
  Result<std::shared_ptr<device::BlockingCopies>> CopiesOf(int device);
  /// What `memory` (kDevice) lies in; kInvalidArgument where the driver contradicts.
  Result<Allocation> AllocationOf(const Memory& memory);
  /// The driver's words where the context of one of the shards' devices is lost; ok otherwise.
  Status FailureOf(std::span<const Shard> shards);
  [[nodiscard]] DeviceKernels& kernels() { return kernels_; }

 private:
  Status Open();

  const Settings settings_;
  DeviceKernels kernels_;
  std::mutex mutex_;
  std::shared_ptr<device::Devices> devices_;
  std::map<int, std::shared_ptr<device::BlockingCopies>> copies_;
};

inline bool IsOnDevice(const Shard& shard) {
  return !shard.declared && shard.memory.kind == MemoryKind::kDevice;
}
/// The ordinal of its device; kHostMemory: it lies on none.
inline constexpr int kHostMemory = -1;
inline int DeviceOf(const Shard& shard) { return IsOnDevice(shard) ? shard.memory.device : kHostMemory; }
bool AnyOnDevice(std::span<const Shard> shards);

/// Refuses the setting `checksum`, which needs the host to read what lands on a device: kInvalidArgument,
/// naming the tensor.
Status CheckSettings(std::span<const Shard> shards, const Settings& settings);

/// Refuses shards that are not where they say: kInvalidArgument, naming the tensor.
Status CheckPlaces(std::span<const Shard> shards, DeviceMemories& devices);

/// Elements of device memory in host memory, for one caller: `data` is where the first of the shard would be.
class HostCopy {
 public:
  /// Copies what Gather would read of `source`, which lies on `device`.
  Status Fill(DeviceMemories& devices, int device, const GatherSource& source, int64_t first, int64_t count);
  [[nodiscard]] const std::byte* data() const { return data_; }

 private:
  std::vector<std::byte> bytes_;
  const std::byte* data_ = nullptr;
};

}  // namespace weightcast::worker
