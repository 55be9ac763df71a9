#pragma once

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "control/absence.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

// How the user's calls wait.
namespace weightcast::worker {

/// The process in which it was made. Threads do not survive fork, so a child must not wait for them.
class OwnProcess {
 public:
  OwnProcess() : pid_(::getpid()) {}
  /// kInternal in a forked child.
  [[nodiscard]] Status Check() const {
    if (::getpid() == pid_) return Status::Ok();
    return {Code::kInternal,
            "a worker cannot be used in a forked child; make workers after the fork, or start processes by "
            "spawn"};
  }

 private:
  pid_t pid_;
};

/// What WorkerOptions::interrupted is; may be empty.
using Interrupted = std::function<bool()>;
enum class Woken { kDone, kDeadline, kInterrupted, kAway };

/// How long calls wait on while there is no controller: `limit` from the beginning of the call or of the
/// absence, whichever is later. Without a limit, for ever.
struct Patience {
  std::shared_ptr<const control::Absence> absence;
  std::optional<Duration> limit;

  [[nodiscard]] bool OverFor(TimePoint start) const { return limit && Clock::now() >= EndFor(start); }
  /// No later than that must be looked again.
  [[nodiscard]] TimePoint EndFor(TimePoint start) const {
    if (!limit) return kNever;
    const auto since = absence->since();
    return (since ? std::max(*since, start) : Clock::now()) + *limit;
  }
};

/// What ends a wait before what it waits for.
struct Limits {
  TimePoint deadline;
  Interrupted interrupted = {};
  Patience patience = {};
  TimePoint start = Clock::now();
};

/// A value that some threads change and others read, or wait for.
template <typename Value>
class Shared {
 public:
  /// Wakes those who wait. What `change` returns.
  template <typename Function>
  auto Change(const Function& change) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();  // They look when the lock is free.
    return change(value_);
  }
  template <typename Function>
  auto Read(const Function& read) const {
    const std::lock_guard lock(mutex_);
    return read(value_);
  }
  /// Waits until `done`, which may take what it waits for, returns true. `interrupted` is called without the
  /// lock.
  template <typename Done>
  Woken Wait(const Limits& limits, const Done& done) {
    constexpr auto kBetweenLooks = std::chrono::milliseconds(100);
    const auto is_done = [&] { return done(value_); };
    std::unique_lock lock(mutex_);
    while (true) {
      TimePoint look = std::min(limits.deadline, limits.patience.EndFor(limits.start));
      if (limits.interrupted) look = std::min(look, Clock::now() + kBetweenLooks);
      if (changed_.wait_until(lock, look, is_done)) return Woken::kDone;
      if (limits.interrupted) {
        lock.unlock();
        const bool stop = limits.interrupted();
        lock.lock();
        if (is_done()) return Woken::kDone;
        if (stop) return Woken::kInterrupted;
      }
      if (Clock::now() >= limits.deadline) return Woken::kDeadline;
      if (limits.patience.OverFor(limits.start)) return Woken::kAway;
    }
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Value value_;
};

/// The reason of something else that ended, as a blocking call tells it: from a call kTimedOut means that its
/// own time is over, and nothing else.
inline Status AsOutcome(Status reason) {
  if (reason.code() != Code::kTimedOut) return reason;
  return {Code::kUnavailable, reason.message()};
}

}  // namespace weightcast::worker
