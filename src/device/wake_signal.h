#pragma once

#include <atomic>
#include <memory>

#include "base/poller.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// Wakes an endpoint that sleeps when something of its GPUs is over. Arm, then look once more at what you
/// wait for: what was over before Arm may leave the descriptor as it is.
class WakeSignal {
 public:
  static Result<std::shared_ptr<WakeSignal>> Create();
  /// Readable after something was over while armed.
  [[nodiscard]] int fd() const { return wake_.fd(); }

  // --- The holder of progress
  void Arm() { armed_.store(true, std::memory_order_seq_cst); }
  void Disarm();

  /// A worker: once what is waited for can be seen.
  void Ring();

 private:
  WakeFd wake_;
  std::atomic<bool> armed_{false};
  std::atomic<bool> woken_{false};  ///< The descriptor is readable.
};

}  // namespace weightcast::device
