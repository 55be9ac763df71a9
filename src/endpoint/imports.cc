#include "endpoint/imports.h"

namespace weightcast::endpoint {

uint32_t Imports::Add(std::shared_ptr<RemoteImport> import) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    entries_.push_back(std::move(import));
    return static_cast<uint32_t>(entries_.size() - 1);
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  entries_[index] = std::move(import);
  return index;
}

void Imports::Remove(uint32_t index) {
  std::shared_ptr<RemoteImport> gone;  // Let go without the lock: it calls the endpoint.
  const std::lock_guard lock(mutex_);
  if (index >= entries_.size() || entries_[index] == nullptr) return;
  gone = std::move(entries_[index]);
  free_.push_back(index);
}

std::shared_ptr<RemoteImport> Imports::Find(uint32_t index) const {
  const std::lock_guard lock(mutex_);
  return index < entries_.size() ? entries_[index] : nullptr;
}

}  // namespace weightcast::endpoint
