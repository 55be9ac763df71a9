#include "transport/verbs/gpu_memory.h"

#include <algorithm>
#include <utility>

#include "device/describe.h"

namespace weightcast::transport::verbs {

Result<std::shared_ptr<device::Worker>> GpuMemory::Use(int ordinal) {
  std::shared_ptr<device::Devices> devices;
  {
    const std::lock_guard lock(mutex_);
    if (devices_ == nullptr) {
      WC_ASSIGN_OR_RETURN(devices_, device::DevicesInProcess(settings_));
    }
    devices = devices_;
  }
  WC_ASSIGN_OR_RETURN(device::Device device, devices->Of(ordinal));
  const std::lock_guard lock(mutex_);
  const auto same = [&](const device::Device& each) { return each.worker == device.worker; };
  if (std::ranges::none_of(used_, same)) used_.push_back(device);
  return device.worker;
}

Result<PreparedMemory> GpuMemory::Prepare(const DescribedMemory& memory) {
  WC_ASSIGN_OR_RETURN(const auto worker, Use(memory.ordinal));
  const device::Context& context = worker->context();
  const Memory given{
      .kind = memory.kind, .device = memory.ordinal, .address = memory.address, .length = memory.length};
  WC_ASSIGN_OR_RETURN(const device::DeviceMemory described, device::Describe(context, given));
  WC_RETURN_IF_ERROR(device::CheckOrder(context));
  PreparedMemory prepared{.buffer = {}, .why_none = {}, .health = worker->health()};
  auto buffer = device::ExportDmaBuf(context, described);
  if (buffer.ok()) {
    prepared.buffer = std::move(*buffer);
  } else if (buffer.status().code() == Code::kUnavailable) {
    prepared.why_none = buffer.status().message();
  } else {
    return buffer.status();
  }
  return prepared;
}

}  // namespace weightcast::transport::verbs
