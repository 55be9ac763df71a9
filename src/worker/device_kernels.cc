#include "worker/device_kernels.h"

#include "base/log.h"
#include "base/strings.h"
#include "device/in_process.h"

namespace weightcast::worker {

bool DeviceKernels::Usable(int device) const {
  const std::lock_guard lock(mutex_);
  return settings_.gpu_kernels != 0 && !unusable_.contains(device);
}

Result<std::shared_ptr<device::Kernels>> DeviceKernels::Of(int device) {
  WC_ASSIGN_OR_RETURN(const auto devices, device::DevicesInProcess(settings_));
  WC_ASSIGN_OR_RETURN(const auto found, devices->Of(device));
  return found.worker->kernels()->Get();
}

void DeviceKernels::GiveUp(int device, std::string_view which, const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!unusable_.insert(device).second) return;
  }
  WC_LOG(kWarning, "tensors in memory of device ", device, " ", which,
         " pass through host memory from now on, which is slower: ", why.message());
}

}  // namespace weightcast::worker
