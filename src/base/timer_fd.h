#pragma once

#include "base/fd.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast {

/// A descriptor that becomes readable at a time, for a poller.
class TimerFd {
 public:
  static Result<TimerFd> Create();
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// max: never. False: it is time already.
  bool Set(TimePoint at);

 private:
  UniqueFd fd_;
  TimePoint at_ = TimePoint::max();
};

}  // namespace weightcast
