#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace weightcast::worker {

/// Threads for work that blocks (connecting, reading tables, checksums), each for one task. All are joined at
/// the end. Thread safe.
class Background {
 public:
  explicit Background(const char* name) : name_(name) {}  ///< Of the threads, at most 15 characters.
  ~Background() { Join(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// On the caller's thread where the system gives no other.
  void Run(const std::function<void()>& task);
  void Join();

 private:
  struct Entry {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };

  const char* const name_;
  std::mutex mutex_;
  std::list<Entry> entries_;
};

}  // namespace weightcast::worker
