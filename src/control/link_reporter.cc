#include "control/link_reporter.h"

#include <utility>

namespace weightcast::control {

LinkReporter::LinkReporter(OnState on_state) : on_state_(std::move(on_state)) {}

void LinkReporter::Report(LinkState state, const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
    status_ = reason;
  }
  changed_.notify_all();
  callbacks_.Run([this, state, reason] {
    if (!quiet_ || state == LinkState::kEnded) on_state_(state, reason);
  });
}

void LinkReporter::Run(std::function<void()> callback) {
  callbacks_.Run([this, callback = std::move(callback)] {
    if (!quiet_) callback();
  });
}

LinkState LinkReporter::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Status LinkReporter::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void LinkReporter::WaitEnded(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return state_ == LinkState::kEnded; });
}

}  // namespace weightcast::control
