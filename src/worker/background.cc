#include "worker/background.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/process.h"

namespace weightcast::worker {

void Background::Run(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->done->load()) {
      entry->thread.join();
      entry = entries_.erase(entry);
    } else {
      ++entry;
    }
  }
  auto done = std::make_shared<std::atomic<bool>>(false);
  std::thread thread([task = std::move(task), done, name = name_] {
    NameThread(name);
    task();
    *done = true;
  });
  entries_.push_back({std::move(thread), std::move(done)});
}

void Background::Join() {
  std::list<Entry> entries;
  {
    const std::lock_guard lock(mutex_);
    entries.swap(entries_);
  }
  for (Entry& entry : entries) entry.thread.join();
}

void ForEachInParallel(size_t count, size_t threads, const std::function<void(size_t)>& task) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) task(i);
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min(count, threads); ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
}

}  // namespace weightcast::worker
