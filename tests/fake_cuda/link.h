#pragma once

#include <memory>

#include "fake_cuda/area.h"
#include "fake_cuda/config.h"
#include "fake_cuda/messages.h"

namespace weightcast::fake_cuda {

/// A process's way to the machine. One thread at a time.
class Link {
 public:
  virtual ~Link() = default;
  /// `fd`, where given: a descriptor to send, -1 for none; then the one that came, or -1.
  virtual Reply Send(const Request& request, int* fd = nullptr) = 0;
  /// Something stands in a ring.
  virtual void Bell() = 0;
  /// Inline: a piece of a stream. False: nothing can run.
  virtual bool Step() = 0;
  virtual Area& area() = 0;
  /// 0: inline.
  [[nodiscard]] virtual int gpu_process() const = 0;
};

/// A machine in this process.
std::unique_ptr<Link> InlineLink(const Config& config);
/// The machine of config.dir; its process is started where there is none.
std::unique_ptr<Link> SocketLink(const Config& config);

}  // namespace weightcast::fake_cuda
