#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "base/poller.h"
#include "endpoint/transfers/progress.h"

namespace weightcast::endpoint {

/// The descriptors that an endpoint watches, each with what to do when it is ready. Belongs to the
/// holder of progress.
class Sockets {
 public:
  using Handler = std::function<void(uint32_t events)>;

  explicit Sockets(const Poller& poller) : poller_(poller) {}

  /// `events`: EPOLLIN, EPOLLOUT. An empty handler: only to be woken. Returns a key, never 0, never given
  /// twice. Errors: kExhausted.
  Result<uint64_t> Watch(int fd, uint32_t events, Handler handler);
  /// Watches for other events from now on.
  void Change(uint64_t key, uint32_t events);
  /// Before the descriptor is closed. Sets `key` to 0; 0 is allowed.
  void Forget(uint64_t& key);

  /// Calls the handlers of what is ready; whether there were any.
  bool Handle();

 private:
  struct Watched {
    int fd = -1;
    uint32_t events = 0;
    std::shared_ptr<const Handler> handler;  ///< Shared: a handler may forget itself while it runs.
  };
  const Poller& poller_;
  std::unordered_map<uint64_t, Watched> watched_;
  uint64_t next_key_ = Progress::kFirstKey;
};

}  // namespace weightcast::endpoint
