#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

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

  /// On the caller's thread where the system gives no other.
  void Run(std::function<void()> task);

 private:
  void Main();

  const char* const name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace weightcast
