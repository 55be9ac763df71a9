#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "weightcast/clock.h"
#include "worker/waiting.h"

namespace weightcast::worker {

/// One thread that runs tasks in the order in which they were posted: the owner of a worker's state.
class Loop {
 public:
  using Task = std::function<void()>;

  /// `name`: at most 15 characters.
  explicit Loop(const char* name) : name_(name) {}
  ~Loop() { Stop(); }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Tasks run from now on. kExhausted where the system gives no thread.
  Status Start();
  /// Any thread. False, and the task is dropped, once stopped or in a forked child.
  bool Post(Task task);
  /// Posts it and returns when it is over, or when it will never run because the loop has stopped: `task` may
  /// use the caller's stack. Any thread but the loop's.
  void RunAndWait(const std::function<void()>& task);
  /// Runs it after `delay`, or never if the loop is stopped before. Any thread.
  void After(Duration delay, Task task);
  /// Ends after the task at hand; what is left is dropped. Idempotent. Not from a task.
  void Stop();

 private:
  void Run();
  /// Moves what is due to the tasks. Under the mutex.
  void TakeDue();

  const char* const name_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  std::multimap<TimePoint, Task> timers_;
  bool stopped_ = false;
  const OwnProcess process_;
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace weightcast::worker
