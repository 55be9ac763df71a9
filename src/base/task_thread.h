#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "weightcast/status.h"

namespace weightcast {

/// Runs tasks in order on a thread of its own, which begins with the first. For what takes longer than the
/// caller may wait. Thread safe.
class TaskThread {
 public:
  explicit TaskThread(const char* name) : name_(name) {}  ///< At most 15 characters.
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;
  /// All tasks have run.
  ~TaskThread();

  /// Begins the thread at once. kExhausted where the system gives none.
  Status Start();
  /// On the caller's thread where the system gives no other.
  void Run(std::function<void()> task);

 private:
  Status StartIfNone();  ///< Under the mutex.
  void Main();

  const char* const name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace weightcast
