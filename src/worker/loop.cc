#include "worker/loop.h"

#include <future>
#include <memory>
#include <utility>

#include "base/thread.h"

namespace weightcast::worker {

Status Loop::Start() {
  WC_ASSIGN_OR_RETURN(thread_, StartThread(name_, [this] { Run(); }));
  return Status::Ok();
}

bool Loop::Post(Task task) {
  if (!process_.Check().ok()) return false;  // The thread is the parent's.
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

void Loop::RunAndWait(const std::function<void()>& task) {
  // The task owns the promise: it ends the wait too where the task is dropped.
  auto over = std::make_shared<std::promise<void>>();
  const auto ended = over->get_future();
  Post([&task, over = std::move(over)] {
    task();
    over->set_value();
  });
  ended.wait();
}

void Loop::After(Duration delay, Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    timers_.emplace(Clock::now() + delay, std::move(task));
  }
  wake_.notify_one();
}

void Loop::Stop() {
  std::deque<Task> tasks;
  std::multimap<TimePoint, Task> timers;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    // Destroyed outside the lock: a task may own what posts.
    tasks.swap(tasks_);
    timers.swap(timers_);
  }
  wake_.notify_one();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void Loop::TakeDue() {
  const TimePoint now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    tasks_.push_back(std::move(timers_.begin()->second));
    timers_.erase(timers_.begin());
  }
}

void Loop::Run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    TakeDue();
    if (tasks_.empty()) {
      if (timers_.empty()) {
        wake_.wait(lock);
      } else {
        const TimePoint next = timers_.begin()->first;
        wake_.wait_until(lock, next);
      }
      continue;
    }
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

}  // namespace weightcast::worker
