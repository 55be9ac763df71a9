#include "transport/shm/link_parts.h"

#include "base/strings.h"

namespace weightcast::transport::shm {

std::string LinkParts::PeerName() const {
  return pid > 0 ? StrCat("pid ", pid) : std::string("a process of another pid namespace");
}

void LinkParts::CloseChannel() {
  if (!channel.valid()) return;
  context.poller.Remove(channel.fd());
  channel.Close();
}

void LinkParts::UpdateInterest() const {
  // Who floods us with requests and does not read the answers is not read either.
  const uint32_t in = channel.congested() && !over() ? 0U : uint32_t{EPOLLIN};
  const uint32_t out = channel.waiting() ? uint32_t{EPOLLOUT} : 0U;
  (void)context.poller.Modify(channel.fd(), in | out, KeyOf(PollKind::kChannel));
}

}  // namespace weightcast::transport::shm
