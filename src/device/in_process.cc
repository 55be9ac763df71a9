#include "device/in_process.h"

#include <mutex>
#include <utility>

namespace weightcast::device {

Result<std::shared_ptr<Devices>> DevicesInProcess() {
  static std::mutex mutex;
  static std::weak_ptr<Devices> shared;
  const std::lock_guard lock(mutex);
  if (auto found = shared.lock(); found != nullptr && found->gpus()->Usable().ok()) return found;
  WC_ASSIGN_OR_RETURN(auto cuda, drivers::LoadCuda(drivers::CudaUse::kAsked));
  WC_ASSIGN_OR_RETURN(auto gpus, Gpus::Create(std::move(cuda)));
  auto made = std::make_shared<Devices>(std::move(gpus));
  shared = made;
  return made;
}

}  // namespace weightcast::device
