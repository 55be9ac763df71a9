#pragma once

#include <cstdint>

#include "transport/verbs/messages.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

/// What becomes of a link's queue pairs, by their numbers.
class QueueEvents {
 public:
  virtual ~QueueEvents() = default;
  /// The peer's probe has arrived.
  virtual void OnQueueProbed(uint32_t queue, const Probe& probe) = 0;
  /// Ours has.
  virtual void OnQueueProven(uint32_t queue) = 0;
  virtual void OnQueueBroken(uint32_t queue, Status reason) = 0;
};

}  // namespace weightcast::transport::verbs
