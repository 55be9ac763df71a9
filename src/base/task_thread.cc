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

Status TaskThread::StartIfNone() {
  if (thread_.joinable()) return Status::Ok();
  WC_ASSIGN_OR_RETURN(thread_, StartThread(name_, [this] { Main(); }));
  return Status::Ok();
}

Status TaskThread::Start() {
  const std::lock_guard lock(mutex_);
  return StartIfNone();
}

void TaskThread::Run(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (StartIfNone().ok()) {
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
