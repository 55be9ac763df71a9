#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "base/task_thread.h"
#include "control/client.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// What a worker gets to know of its link: the state that it may ask for, and callbacks, one at a time and
/// in order, on a thread of its own. Thread safe.
class LinkReporter {
 public:
  using OnState = std::function<void(LinkState, const Status&)>;
  explicit LinkReporter(OnState on_state);
  /// All callbacks have run, or are skipped.
  ~LinkReporter() = default;

  /// Who asks sees it before the callback.
  void Report(LinkState state, const Status& reason);
  /// Runs the caller's code after what was reported before.
  void Run(std::function<void()> callback);
  /// Skips the callbacks that have not begun, but for the report of kEnded.
  void Quiet() { quiet_ = true; }

  [[nodiscard]] LinkState state() const;  ///< kBroken before the first report.
  [[nodiscard]] Status status() const;
  void WaitEnded(TimePoint deadline);

 private:
  const OnState on_state_;
  std::atomic<bool> quiet_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  LinkState state_ = LinkState::kBroken;
  Status status_;
  TaskThread callbacks_{"wc-deliver"};  ///< Last: its tasks use the others.
};

}  // namespace weightcast::control
