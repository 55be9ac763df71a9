#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <optional>
#include <span>

#include "base/fd.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast {

/// Wakes a sleeping poller from any thread.
class WakeFd {
 public:
  static Result<WakeFd> Create();
  void Wake() const;
  /// Takes all pending wake-ups.
  void Drain() const;
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

/// epoll. Registered descriptors must be removed before they are closed. Add/Modify/Remove are
/// thread safe; Wait belongs to one thread at a time.
class Poller {
 public:
  static Result<Poller> Create();
  /// events: EPOLLIN, EPOLLOUT, ... ; `key` comes back from Wait.
  Status Add(int fd, uint32_t events, uint64_t key) const;
  Status Modify(int fd, uint32_t events, uint64_t key) const;
  void Remove(int fd) const;
  /// How many of `out` were filled: 0 after the time-out (nullopt: no time-out) or EINTR.
  int Wait(std::span<epoll_event> out, std::optional<Duration> timeout) const;
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace weightcast
