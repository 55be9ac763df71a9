#include "device/in_process.h"

#include <mutex>
#include <utility>

namespace weightcast::device {

Result<std::shared_ptr<Devices>> DevicesInProcess(const Settings& settings) {
  static std::mutex mutex;
  static std::weak_ptr<Devices> shared;
  const std::lock_guard lock(mutex);
  const auto found = settings.gpu == "off" ? nullptr : shared.lock();
  if (found != nullptr && found->gpus()->Usable().ok()) return found;
  WC_ASSIGN_OR_RETURN(auto gpus, Gpus::Open(settings, drivers::CudaUse::kAsked));
  auto made = std::make_shared<Devices>(std::move(gpus));
  shared = made;
  return made;
}

}  // namespace weightcast::device
