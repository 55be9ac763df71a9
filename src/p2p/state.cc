#include "p2p/state.h"

#include "base/strings.h"

namespace weightcast::p2p {

std::string NameOf(const Peer& peer) {
  return StrCat("the p2p endpoint of rank ", peer.connection.peer().rank, " at ", peer.connection.address());
}

void State::Send(const Peer& peer, const Message& message) {
  if (outbox.Post(peer.connection, Encode(message))) return;
  Connection(peer.connection).Close();  // It reads nothing and yet wants more: its end is told soon.
}

Result<ChannelPtr> State::Usable(uint64_t id) const {
  const auto found = channels.find(id);
  if (found == channels.end())
    return Error(Code::kInvalidArgument, "there is no connection ", id,
                 ", or it was removed; give the number of an open one");
  if (!found->second->status.ok()) return found->second->status;
  return found->second;
}

}  // namespace weightcast::p2p
