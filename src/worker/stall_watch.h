#pragma once

#include "weightcast/clock.h"
#include "worker/loop.h"

namespace weightcast::worker {

/// Notices when this process did not run: it was stopped, or others had the processor. While it watches, the
/// loop has a task every 10 ms; one that comes more than 50 ms late tells. The loop's; to be destroyed after
/// the loop has ended.
class StallWatch {
 public:
  explicit StallWatch(Loop& loop) : loop_(loop) {}

  void Watch(bool on);
  /// In all, until now.
  [[nodiscard]] double seconds();

 private:
  void Tick();
  void Arm();

  Loop& loop_;
  bool on_ = false;
  bool armed_ = false;
  TimePoint due_;
  double seconds_ = 0;
};

}  // namespace weightcast::worker
