#pragma once

#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// Since when, and why, a worker has no controller. Its client says so; calls that wait look. Thread safe.
class Absence {
 public:
  /// Also again, with a later reason.
  void Begin(TimePoint since, Status why) {
    const std::lock_guard lock(mutex_);
    since_ = since;
    why_ = std::move(why);
  }
  void End() {
    const std::lock_guard lock(mutex_);
    since_.reset();
  }
  [[nodiscard]] std::optional<TimePoint> since() const {
    const std::lock_guard lock(mutex_);
    return since_;
  }
  /// What a call says that ends because of it.
  [[nodiscard]] Status Told() const {
    const std::lock_guard lock(mutex_);
    if (!since_) return Status::Ok();
    const double seconds = std::round(Seconds(Clock::now() - *since_) * 10) / 10;
    return Error(Code::kUnavailable, "no controller for ", seconds, " s; last error: ", why_.message());
  }

 private:
  mutable std::mutex mutex_;
  std::optional<TimePoint> since_;
  Status why_;
};

}  // namespace weightcast::control
