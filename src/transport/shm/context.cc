#include "transport/shm/context.h"

namespace weightcast::transport::shm {

Result<DeviceSide*> Context::MakeDevices(const Settings& settings) {
  const std::lock_guard lock(devices_mutex);
  if (devices_made == nullptr) {
    WC_ASSIGN_OR_RETURN(auto made, DeviceSide::Create(settings));
    WC_RETURN_IF_ERROR(poller.Add(made->signal().fd(), EPOLLIN, PollKey(PollKind::kDevice, 0)));
    devices_made = std::move(made);
    devices_seen.store(devices_made.get(), std::memory_order_release);
  }
  return devices_made.get();
}

}  // namespace weightcast::transport::shm
