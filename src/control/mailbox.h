#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "weightcast/clock.h"

namespace weightcast::control {

/// Tasks from any thread for the one that owns the state. Outlives its owner for those who still post.
class Mailbox {
 public:
  using Task = std::function<void()>;

  /// False, and the task is dropped, once closed.
  bool Post(Task task) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return false;
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
    return true;
  }
  /// The next task; nullopt at `until`.
  std::optional<Task> Take(TimePoint until) {
    std::unique_lock lock(mutex_);
    if (!wake_.wait_until(lock, until, [&] { return !tasks_.empty(); })) return std::nullopt;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }
  void Close() {
    std::deque<Task> dropped;
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(tasks_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool closed_ = false;
};

}  // namespace weightcast::control
