#include "endpoint/transfers/imports.h"

#include <utility>

#include "endpoint/transfers/slices.h"

namespace weightcast::endpoint {

Imports::~Imports() {
  for (const auto& entry : entries_) {
    if (entry != nullptr) release_(entry->import.handle);
  }
}

RemoteRegion Imports::Add(RemoteImport import) {
  import.serial = SliceAccess::NewSerial();
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(entries_.size()));
    entries_.emplace_back();
  }
  const uint32_t index = free_.back();
  auto entry = std::make_unique<Entry>(Entry{.import = import});
  table_.Set(index, &entry->import);
  entries_[index] = std::move(entry);
  free_.pop_back();
  return RemoteRegion(SliceAccess::Make<SliceSide::kRemote>(import.serial, index, 0, import.length));
}

void Imports::Remove(const RemoteRegion& region) {
  const uint32_t index = SliceAccess::IndexOf(region.Whole());
  bool unused = false;
  {
    const std::lock_guard lock(mutex_);
    if (index >= entries_.size() || entries_[index] == nullptr) return;
    if (entries_[index]->import.serial != SliceAccess::SerialOf(region.Whole())) return;
    if (std::exchange(entries_[index]->removed, true)) return;
    unused = table_.Remove(index);
  }
  if (unused) OnUnused(index);
}

const RemoteImport* Imports::Use(uint32_t index) {
  const auto found = table_.Use(index);
  if (found.became_unused) OnUnused(index);
  return found.thing;
}

void Imports::Done(uint32_t index) {
  if (table_.Drop(index)) OnUnused(index);
}

void Imports::OnUnused(uint32_t index) {
  std::unique_ptr<Entry> gone;
  {
    const std::lock_guard lock(mutex_);
    gone = std::move(entries_[index]);
    free_.push_back(index);
  }
  release_(gone->import.handle);  // Without the lock: it calls the endpoint.
}

}  // namespace weightcast::endpoint
