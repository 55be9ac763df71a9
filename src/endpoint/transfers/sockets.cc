#include "endpoint/transfers/sockets.h"

#include <array>

namespace weightcast::endpoint {

Result<uint64_t> Sockets::Watch(int fd, uint32_t events, Handler handler) {
  const uint64_t key = next_key_++;
  WC_RETURN_IF_ERROR(poller_.Add(fd, events, key));
  watched_.emplace(key, Watched{fd, events, std::make_shared<const Handler>(std::move(handler))});
  return key;
}

void Sockets::Change(uint64_t key, uint32_t events) {
  const auto found = watched_.find(key);
  if (found == watched_.end() || found->second.events == events) return;
  found->second.events = events;
  // Fails only for descriptors that are not there; ours are.
  if (!poller_.Modify(found->second.fd, events, key).ok()) found->second.events = 0;
}

void Sockets::Forget(uint64_t& key) {
  if (const auto found = watched_.find(key); found != watched_.end()) {
    poller_.Remove(found->second.fd);
    watched_.erase(found);
  }
  key = 0;
}

bool Sockets::Handle() {
  std::array<epoll_event, 64> ready;
  const int count = poller_.Wait(ready, Duration::zero());
  bool handled = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t key = ready[i].data.u64;  // A copy: epoll_event is packed.
    // One forgotten by an earlier handler of this round is no longer found; keys are not used again.
    const auto found = watched_.find(key);
    if (found == watched_.end()) continue;
    const auto handler = found->second.handler;
    if (!*handler) continue;
    (*handler)(ready[i].events);
    handled = true;
  }
  return handled;
}

}  // namespace weightcast::endpoint
