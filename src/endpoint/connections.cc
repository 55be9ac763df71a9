#include "endpoint/connections.h"

#include <algorithm>
#include <utility>

#include "endpoint/handshake.h"

namespace weightcast::endpoint {

Connections::ConnectionState Connections::Find(Incarnation peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(peer);
  return found == live_.end() ? nullptr : found->second;
}

Connections::ConnectionState Connections::FindMatching(const Identity& expected) const {
  if (expected.role.empty() && expected.incarnation == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(live_.begin(), live_.end(), [&](const auto& entry) {
    return Matches(expected, entry.second->view().peer().identity);
  });
  return found == live_.end() ? nullptr : found->second;
}

std::vector<Connections::ConnectionState> Connections::All() const {
  const std::lock_guard lock(mutex_);
  std::vector<ConnectionState> all;
  for (const auto& [incarnation, connection] : live_) all.push_back(connection);
  return all;
}

Connections::ConnectionState Connections::Replace(const ConnectionState& connection) {
  const std::lock_guard lock(mutex_);
  return std::exchange(live_[connection->view().peer().identity.incarnation], connection);
}

void Connections::OnReady(const ConnectionState& connection, transport::Role role) {
  if (role != transport::Role::kResponder || !context_.options.on_connection) return;
  context_.callbacks.Later(
      [told = context_.options.on_connection, connection] { told(Connection(connection)); });
}

void Connections::OnEnded(const ConnectionState& connection, const Status& reason) {
  const Identity& peer = connection->view().peer().identity;
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(peer.incarnation);
    if (found != live_.end() && found->second == connection) live_.erase(found);
  }
  if (!connection->view().was_ready() || !context_.options.on_disconnect) return;
  context_.callbacks.Later([told = context_.options.on_disconnect, peer, reason] { told(peer, reason); });
}

void Connections::OnNotice(const ConnectionState& connection) {
  if (!context_.options.on_notice) return;
  context_.callbacks.Later([told = context_.options.on_notice, connection] { told(Connection(connection)); });
}

}  // namespace weightcast::endpoint
