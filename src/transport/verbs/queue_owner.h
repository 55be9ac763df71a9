#pragma once

#include <cstdint>
#include <string_view>

#include "weightcast/status.h"

namespace weightcast::transport::verbs {

/// Whoever a queue pair's completions are for. May destroy the queue pair inside any of these.
class QueueOwner {
 public:
  virtual ~QueueOwner() = default;
  /// The work request of this number, and all before it, have completed.
  virtual void OnSent(uint32_t sequence) = 0;
  /// This one has failed: those before it have completed, those after it are lost. `code`: what became of it.
  virtual void OnSendError(uint32_t sequence, Code code, std::string_view reason) = 0;
  virtual void OnMessage(std::string_view bytes) = 0;
  virtual void OnImmediate(uint32_t bits) = 0;
  /// The device says that the queue pair is in error.
  virtual void OnBroken(Status reason) = 0;
};

}  // namespace weightcast::transport::verbs
