#include "worker/stall_watch.h"

namespace weightcast::worker {
namespace {

constexpr Duration kInterval = std::chrono::milliseconds(10);
constexpr Duration kLate = std::chrono::milliseconds(50);

}  // namespace

void StallWatch::Watch(bool on) {
  on_ = on;
  if (on && !armed_) Arm();
}

double StallWatch::seconds() {
  const TimePoint now = Clock::now();
  if (armed_ && now - due_ > kLate) {
    seconds_ += Seconds(now - due_);
    due_ = now;
  }
  return seconds_;
}

void StallWatch::Arm() {
  armed_ = true;
  due_ = Clock::now() + kInterval;
  loop_.After(kInterval, [this] { Tick(); });
}

void StallWatch::Tick() {
  (void)seconds();
  armed_ = false;
  if (on_) Arm();
}

}  // namespace weightcast::worker
