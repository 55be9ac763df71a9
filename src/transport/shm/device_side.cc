#include "transport/shm/device_side.h"

#include <utility>

#include "device/in_process.h"

namespace weightcast::transport::shm {

Result<std::unique_ptr<DeviceSide>> DeviceSide::Create(const Settings& settings) {
  WC_ASSIGN_OR_RETURN(auto devices, device::DevicesInProcess(settings));
  WC_ASSIGN_OR_RETURN(auto signal, device::WakeSignal::Create());
  return std::unique_ptr<DeviceSide>(new DeviceSide(std::move(devices), std::move(signal), settings.pinned));
}

DeviceSide::DeviceSide(std::shared_ptr<device::Devices> devices, std::shared_ptr<device::WakeSignal> signal,
                       uint64_t pinned)
    : devices_(std::move(devices)), signal_(std::move(signal)), stage_budget_(pinned) {}

DeviceSide::~DeviceSide() {
  for (const device::Device& each : used_) {
    if (each.worker != nullptr) each.worker->RemoveSignal(signal_);
  }
}

Result<device::Device> DeviceSide::Use(int ordinal) {
  WC_ASSIGN_OR_RETURN(auto found, devices_->Of(ordinal));
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(ordinal);
  if (used_.size() <= index) used_.resize(index + 1);
  if (used_[index].worker == nullptr) {
    used_[index] = found;
    found.worker->AddSignal(signal_);
  }
  return found;
}

Result<std::shared_ptr<const DeviceRegion>> DeviceSide::Describe(const DescribedMemory& memory) {
  WC_ASSIGN_OR_RETURN(auto used, Use(memory.ordinal));
  const Memory given{
      .kind = memory.kind, .device = memory.ordinal, .address = memory.address, .length = memory.length};
  WC_ASSIGN_OR_RETURN(auto described, device::Describe(used.worker->context(), given));
  auto shared = std::make_shared<const device::DeviceMemory>(std::move(described));
  return std::make_shared<const DeviceRegion>(DeviceRegion{std::move(shared), std::move(used)});
}

device::Device DeviceSide::Find(const DeviceUuid& uuid) {
  const std::lock_guard lock(mutex_);
  for (const device::Device& each : used_) {
    if (each.worker != nullptr && each.worker->context().uuid() == uuid) return each;
  }
  return {};
}

device::Trials& DeviceSide::TrialsOf(const device::Device& device) {
  auto& trials = trials_[device.worker.get()];
  if (trials == nullptr) trials = std::make_unique<device::Trials>(device.worker);
  return *trials;
}

}  // namespace weightcast::transport::shm
