#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>

#include "base/poller.h"
#include "base/task_queue.h"
#include "endpoint/transfers/progress.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

/// What an endpoint has to tell its user: on the endpoint's thread, or inside the user's own loop. One
/// callback runs at a time, in the order in which they came, without progress.
class UserCallbacks {
 public:
  /// On the thread.
  explicit UserCallbacks(Progress& progress) : progress_(progress) {}

  /// Before any callback: from now on Run runs them, not the thread.
  Status GiveToUser();
  /// Readable while callbacks wait for Run; -1: the thread runs them.
  [[nodiscard]] int descriptor() const { return waiting_ ? waiting_->fd() : -1; }

  /// Holder of progress: the callback runs soon.
  void Later(std::function<void()> callback);
  /// Any thread: those that wait; how many. None, where the thread runs them or another thread is here.
  size_t Run();
  /// Those that nobody has run, when no more come and nobody calls Run.
  void RunLeft() { queue_.RunAll(); }

 private:
  Progress& progress_;
  std::optional<WakeFd> waiting_;  ///< Only where the user runs them.
  std::mutex mutex_;               ///< Held by who takes the next.
  TaskQueue queue_;
};

}  // namespace weightcast::endpoint
