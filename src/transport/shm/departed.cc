#include "transport/shm/departed.h"

#include "base/process.h"
#include "transport/shm/source_messages.h"

namespace weightcast::transport::shm {

bool DepartedPeer::Look(const Poller& poller) {
  // A peer says that all is dropped before it closes its socket, unless its process ends.
  if (channel_.valid() && !ReadMessages()) CloseChannel(poller);
  const bool ended = process_.valid() ? HasExited(process_) : !channel_.valid();
  if (!ended && !held_.empty()) return false;
  CloseChannel(poller);
  if (process_.valid()) poller.Remove(process_.get());
  process_.reset();
  cells_.GiveBack();
  return true;
}

/// False: the socket says no more.
bool DepartedPeer::ReadMessages() {
  while (true) {
    auto message = channel_.Receive();
    if (!message.ok()) return false;
    if (!*message) return true;
    const auto dropped = Decode<Dropped>((*message)->bytes);
    if (!dropped.ok()) continue;  // Said before it heard that the link is closed.
    if (dropped->all) held_.clear();
    if (!dropped->all) held_.erase(dropped->region.first);
  }
}

void DepartedPeer::CloseChannel(const Poller& poller) {
  if (!channel_.valid()) return;
  poller.Remove(channel_.fd());
  channel_.Close();
}

}  // namespace weightcast::transport::shm
