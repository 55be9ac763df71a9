#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/devices.h"
#include "memory/memory.h"
#include "weightcast/device.h"
#include "weightcast/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

/// What an endpoint asks the driver about device memory and streams. Loads the driver's library when it is
/// first asked, and keeps it. Any thread that may block in the driver: never while holding progress.
class DeviceMemory {
 public:
  explicit DeviceMemory(const Settings& settings) : settings_(settings) {}

  /// What `memory` (kDevice, > 0 bytes) is; loads its device's kernels. kInvalidArgument where the driver
  /// contradicts; kUnavailable where there is no driver, no such device, or the setting `gpu` is off.
  Result<DescribedMemory> Describe(const Memory& memory);
  /// The present position of a stream. kInvalidArgument while the stream is captured into a graph.
  Result<std::shared_ptr<const DeviceEvent>> Record(const StreamRef& stream);

 private:
  Result<std::shared_ptr<device::Devices>> Open();
  Status LoadKernels(int device);

  const Settings& settings_;
  std::mutex mutex_;
  std::shared_ptr<device::Devices> devices_;
  /// Of each device that memory was described of, for the endpoint's life: the kernels go with the worker.
  std::map<int, device::Device> used_;
};

}  // namespace weightcast::endpoint
