#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/dmabuf.h"
#include "device/in_process.h"
#include "memory/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

/// Device memory that the driver has prepared for NICs.
struct PreparedMemory {
  device::DmaBuf buffer;
  std::string why_none;  ///< Why there is no dma-buf, where there is none.
  std::shared_ptr<const device::Health> health;
};

/// What one transport asks of this process's devices. It keeps each that it has used to its own end, because
/// the last holder of a device waits for the device's thread. Any thread that may block in the driver.
class GpuMemory {
 public:
  explicit GpuMemory(const Settings& settings) : settings_(settings) {}
  /// Errors are those of DevicesInProcess, device::Describe and device::CheckOrder.
  Result<PreparedMemory> Prepare(const DescribedMemory& memory);

 private:
  Result<std::shared_ptr<device::Worker>> Use(int ordinal);

  const Settings settings_;
  std::mutex mutex_;  ///< Guards the next two.
  std::shared_ptr<device::Devices> devices_;
  std::vector<device::Device> used_;
};

}  // namespace weightcast::transport::verbs
