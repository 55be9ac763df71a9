#pragma once

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "weightcast/clock.h"
#include "weightcast/status.h"

// How the user's calls wait.
namespace weightcast::worker {

/// `seconds` from now; for ever (30 years) for what is larger, infinite or not a number.
inline TimePoint DeadlineIn(double seconds) {
  constexpr double kForEver = 1e9;
  if (seconds <= 0) return Clock::now();
  return Clock::now() + FromSeconds(seconds < kForEver ? seconds : kForEver);
}

/// The process in which it was made. Threads do not survive fork, so a child must not wait for them.
class OwnProcess {
 public:
  OwnProcess() : pid_(::getpid()) {}
  /// kInternal in a forked child.
  [[nodiscard]] Status Check() const {
    if (::getpid() == pid_) return Status::Ok();
    return {Code::kInternal, "used in a forked child; make workers after fork, or start processes by spawn"};
  }

 private:
  pid_t pid_;
};

/// What WorkerOptions::interrupted is; may be empty.
using Interrupted = std::function<bool()>;
enum class Woken { kDone, kDeadline, kInterrupted };

/// Waits until `done`, which is looked at under `lock`. `interrupted` is called without the lock.
template <typename Done>
Woken WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, TimePoint deadline,
                const Interrupted& interrupted, const Done& done) {
  constexpr auto kBetweenLooks = std::chrono::milliseconds(100);
  while (true) {
    const TimePoint look = interrupted ? std::min(deadline, Clock::now() + kBetweenLooks) : deadline;
    if (changed.wait_until(lock, look, done)) return Woken::kDone;
    if (interrupted) {
      lock.unlock();
      const bool stop = interrupted();
      lock.lock();
      if (done()) return Woken::kDone;
      if (stop) return Woken::kInterrupted;
    }
    if (Clock::now() >= deadline) return Woken::kDeadline;
  }
}

/// The reason of something else that ended, as a blocking call tells it: from a call kTimedOut means that its
/// own time is over, and nothing else.
inline Status AsOutcome(Status reason) {
  if (reason.code() != Code::kTimedOut) return reason;
  return {Code::kUnavailable, reason.message()};
}

}  // namespace weightcast::worker
