#pragma once

#include <optional>

#include "transport/shm/departed.h"
#include "transport/shm/link_parts.h"

namespace weightcast::transport::shm {

/// Device memory: what a link does for it beside the senders of bytes. docs/gpu.md, "Over shm".
class LinkDevices {
 public:
  explicit LinkDevices(LinkParts& link) : link_(link) {}

  /// Goes on with copies and mappings, in every state. True if there was anything; a failure ends the link.
  Result<bool> Step();
  /// From kWantSource on.
  Status OnMessage(MessageKind kind, Channel::Incoming message);
  /// Of a closed link whose peer is not `gone`: the peer, where it has yet to unmap regions of this side.
  std::optional<DepartedPeer> Depart(bool gone);
  /// Whether an operation waits for a device's event, of which no descriptor tells.
  [[nodiscard]] bool waits() const { return link_.sender && link_.sender->queue().waits_for_device(); }
  [[nodiscard]] SourceOffers& offers() const { return link_.offers; }

 private:
  LinkParts& link_;
  bool all_dropped_told_ = false;
};

}  // namespace weightcast::transport::shm
