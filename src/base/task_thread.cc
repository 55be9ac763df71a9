#include "base/task_thread.h"

#include <utility>

#include "base/thread.h"

namespace weightcast {

TaskThread::~TaskThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void TaskThread::Run(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      if (auto thread = StartThread(name_, [this] { Main(); }); thread.ok()) thread_ = std::move(*thread);
    }
    if (thread_.joinable()) {
      tasks_.push_back(std::move(task));
      changed_.notify_one();
      return;
    }
  }
  task();
}

void TaskThread::Main() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace weightcast
