#include "worker/background.h"

#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace weightcast::worker {

void Background::Run(const std::function<void()>& task) {
  std::unique_lock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->done->load()) {
      entry->thread.join();
      entry = entries_.erase(entry);
    } else {
      ++entry;
    }
  }
  auto done = std::make_shared<std::atomic<bool>>(false);
  auto thread = StartThread(name_, [task, done] {
    task();
    *done = true;
  });
  if (thread.ok()) {
    entries_.push_back({std::move(*thread), std::move(done)});
    return;
  }
  WC_LOG(kWarning, thread.status().message());
  lock.unlock();
  task();
}

void Background::Join() {
  std::list<Entry> entries;
  {
    const std::lock_guard lock(mutex_);
    entries.swap(entries_);
  }
  for (Entry& entry : entries) entry.thread.join();
}

}  // namespace weightcast::worker
