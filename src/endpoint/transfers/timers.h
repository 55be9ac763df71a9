#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "weightcast/clock.h"

namespace weightcast::endpoint {

/// Names one timer; {} names none.
struct TimerId {
  TimePoint when{};
  uint64_t number = 0;
  friend auto operator<=>(const TimerId&, const TimerId&) = default;
};

/// Things to do at a time of the monotonic clock. Belongs to the holder of progress.
class Timers {
 public:
  TimerId Add(TimePoint when, std::function<void()> fire) {
    const TimerId id{when, ++last_};
    timers_.emplace(id, std::move(fire));
    return id;
  }
  /// Harmless when it has fired or never was. Forgets the name.
  void Cancel(TimerId& id) {
    timers_.erase(id);
    id = {};
  }
  [[nodiscard]] std::optional<TimePoint> next() const {
    if (timers_.empty()) return std::nullopt;
    return timers_.begin()->first.when;
  }
  /// Fires what is due, earliest first; false when nothing was. A timer set meanwhile waits for the next
  /// call.
  bool RunDue(TimePoint now) {
    const uint64_t newest = last_;
    bool fired = false;
    for (auto due = timers_.begin(); due != timers_.end() && due->first.when <= now;) {
      if (due->first.number > newest) {
        ++due;
        continue;
      }
      const auto fire = std::move(due->second);
      timers_.erase(due);
      fire();
      fired = true;
      due = timers_.begin();  // `fire` may have cancelled any of them.
    }
    return fired;
  }

 private:
  std::map<TimerId, std::function<void()>> timers_;
  uint64_t last_ = 0;
};

}  // namespace weightcast::endpoint
