#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "transport/verbs/address.h"
#include "weightcast/clock.h"

namespace weightcast::transport::verbs {

/// RoCE peers of one port whose hardware address the kernel did not find. It looks for one for a second,
/// inside the call that connects a queue pair, while nothing else of this process goes on: so it is asked for
/// one peer at most a tenth of the time, and less and less.
class LostPeers {
 public:
  /// How long such a peer is not to be asked for yet; nullopt: it may be.
  [[nodiscard]] std::optional<Duration> Wait(const Gid& gid, TimePoint now) const {
    const auto found = std::ranges::find(peers_, gid, &Peer::gid);
    if (found == peers_.end() || now >= found->until) return std::nullopt;
    return found->until - now;
  }
  /// Connecting to it took so long, and was in vain.
  void OnFailed(const Gid& gid, Duration took, TimePoint now) {
    if (took < kSlow) return;
    auto found = std::ranges::find(peers_, gid, &Peer::gid);
    if (found == peers_.end()) {
      if (peers_.size() == kMost) peers_.erase(peers_.begin());
      found = peers_.insert(peers_.end(), {.gid = gid, .wait = {}, .until = {}});
    }
    found->wait = std::min(std::max(found->wait * 2, took * 10), kLongest);
    found->until = now + found->wait;
  }
  void OnFound(const Gid& gid) {
    if (!peers_.empty()) std::erase_if(peers_, [&](const Peer& peer) { return peer.gid == gid; });
  }
  /// Something has changed at the port: they may be found now.
  void Clear() { peers_.clear(); }

 private:
  static constexpr Duration kSlow = std::chrono::milliseconds(100);
  static constexpr Duration kLongest = std::chrono::seconds(30);
  static constexpr size_t kMost = 1024;
  struct Peer {
    Gid gid{};
    Duration wait{};
    TimePoint until;
  };

  std::vector<Peer> peers_;
};

}  // namespace weightcast::transport::verbs
