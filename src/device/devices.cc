#include "device/devices.h"

namespace weightcast::device {

Device Devices::Find(int ordinal) {
  const auto index = static_cast<size_t>(ordinal);
  if (ordinal < 0 || index >= entries_.size()) return {};
  Device found{entries_[index].worker.lock(), entries_[index].mappings.lock()};
  return found.worker != nullptr && found.mappings != nullptr ? found : Device{};
}

Result<Device> Devices::Of(int ordinal) {
  {
    const std::lock_guard lock(mutex_);
    if (const Device found = Find(ordinal); found.worker != nullptr) return found;
  }
  // Without the lock: the driver may block. Where two threads make one, the first to come back has it.
  WC_ASSIGN_OR_RETURN(auto context, gpus_->Retain(ordinal));
  WC_ASSIGN_OR_RETURN(auto worker, Worker::Create(std::move(context)));
  const Device made{worker, std::make_shared<Mappings>(gpus_, worker->health())};
  const std::lock_guard lock(mutex_);
  if (const Device found = Find(ordinal); found.worker != nullptr) return found;
  if (entries_.size() <= static_cast<size_t>(ordinal)) entries_.resize(static_cast<size_t>(ordinal) + 1);
  entries_[static_cast<size_t>(ordinal)] = {made.worker, made.mappings};
  return made;
}

}  // namespace weightcast::device
