#include "endpoint/user_memory.h"

#include <utility>

#include "device/describe.h"
#include "device/in_use.h"
#include "device/stream_event.h"

namespace weightcast::endpoint {

Result<std::shared_ptr<device::Devices>> UserMemory::Open() {
  const std::lock_guard lock(mutex_);
  if (devices_ == nullptr) {
    WC_ASSIGN_OR_RETURN(devices_, device::DevicesInUse(settings_));
  }
  return devices_;
}

Result<Memory> UserMemory::Recognise(std::span<std::byte> bytes) {
  if (bytes.empty()) return HostMemory(bytes);
  const auto devices = Open();
  return devices.ok() ? device::Recognise(*(*devices)->gpus(), bytes) : HostMemory(bytes);
}

Result<uint64_t> UserMemory::IdentityOf(const Memory& memory) {
  WC_ASSIGN_OR_RETURN(const auto devices, Open());
  WC_ASSIGN_OR_RETURN(const auto context, devices->gpus()->Retain(memory.device));
  return device::IdentityOf(*context, {memory.address, memory.length});
}

Result<std::shared_ptr<const DeviceEvent>> UserMemory::Record(const StreamRef& stream,
                                                              std::function<void(const Status&)> on_over) {
  WC_ASSIGN_OR_RETURN(const auto devices, Open());
  WC_ASSIGN_OR_RETURN(auto device, devices->Of(stream.device));
  const auto tell = [health = device.worker->health(), on_over = std::move(on_over)] {
    on_over(health->failure());
  };
  WC_ASSIGN_OR_RETURN(auto event, device::StreamEvent::Record(std::move(device.worker), stream.stream, tell));
  return std::shared_ptr<const DeviceEvent>(std::move(event));
}

}  // namespace weightcast::endpoint
