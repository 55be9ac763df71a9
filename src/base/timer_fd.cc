#include "base/timer_fd.h"

#include <sys/timerfd.h>

#include <cerrno>

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast {

Result<TimerFd> TimerFd::Create() {
  TimerFd timer;
  timer.fd_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer.fd_.valid()) return Error(Code::kExhausted, "cannot make a timer: ", ErrnoAndAdvice(errno));
  return timer;
}

bool TimerFd::Set(TimePoint at) {
  if (at != TimePoint::max() && at <= Clock::now()) return false;
  if (at == at_) return true;
  itimerspec spec{};  // All zero: off.
  if (at != TimePoint::max()) {
    const auto since = at.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    spec.it_value.tv_sec = seconds.count();
    spec.it_value.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count();
  }
  timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
  at_ = at;
  return true;
}

}  // namespace weightcast
