#pragma once

#include <poll.h>

#include "base/fd.h"
#include "base/process.h"
#include "transport/shm/channel.h"

namespace weightcast::transport::shm {

/// Whether the peer's process still runs, as its descriptor tells; without one, the socket's hang-up must do.
class PeerLife {
 public:
  PeerLife(const UniqueFd& pidfd, const Channel& channel) : pidfd_(&pidfd), channel_(&channel) {}
  /// One system call.
  [[nodiscard]] bool Ended() const {
    if (pidfd_->valid()) return HasExited(*pidfd_);
    pollfd entry{.fd = channel_->fd(), .events = 0, .revents = 0};
    return !channel_->valid() || (poll(&entry, 1, 0) == 1 && (entry.revents & (POLLHUP | POLLERR)) != 0);
  }

 private:
  const UniqueFd* pidfd_;
  const Channel* channel_;
};

}  // namespace weightcast::transport::shm
