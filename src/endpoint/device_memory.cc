#include "endpoint/device_memory.h"

#include <utility>

#include "base/strings.h"
#include "device/describe.h"
#include "device/in_process.h"
#include "device/kernels.h"
#include "device/stream_event.h"

namespace weightcast::endpoint {

Result<std::shared_ptr<device::Devices>> DeviceMemory::Open() {
  const std::lock_guard lock(mutex_);
  if (devices_ == nullptr) {
    WC_ASSIGN_OR_RETURN(devices_, device::DevicesInProcess(settings_));
  }
  return devices_;
}

Result<DescribedMemory> DeviceMemory::Describe(const Memory& memory) {
  const auto describe = [&]() -> Result<DescribedMemory> {
    WC_ASSIGN_OR_RETURN(const auto devices, Open());
    WC_ASSIGN_OR_RETURN(const auto context, devices->gpus()->Retain(memory.device));
    WC_ASSIGN_OR_RETURN(auto described, device::Describe(*context, memory));
    WC_RETURN_IF_ERROR(LoadKernels(memory.device));
    return described.memory;
  };
  auto described = describe();
  if (described.ok()) return described;
  return Error(described.status().code(), "cannot register ", HumanBytes(static_cast<double>(memory.length)),
               " of device ", memory.device, ": ", described.status().message());
}

/// Here, on the user's thread: later it would wait behind whatever the device runs. Without kernels all goes
/// on.
Status DeviceMemory::LoadKernels(int device) {
  if (settings_.gpu_kernels == 0) return Status::Ok();
  WC_ASSIGN_OR_RETURN(const auto devices, Open());
  WC_ASSIGN_OR_RETURN(const auto found, devices->Of(device));
  (void)found.worker->kernels()->Get();
  const std::lock_guard lock(mutex_);
  used_[device] = found;
  return Status::Ok();
}

Result<std::shared_ptr<const DeviceEvent>> DeviceMemory::Record(const StreamRef& stream) {
  WC_ASSIGN_OR_RETURN(const auto devices, Open());
  WC_ASSIGN_OR_RETURN(auto device, devices->Of(stream.device));
  WC_ASSIGN_OR_RETURN(auto event, device::StreamEvent::Record(std::move(device.worker), stream.stream));
  return std::shared_ptr<const DeviceEvent>(std::move(event));
}

}  // namespace weightcast::endpoint
