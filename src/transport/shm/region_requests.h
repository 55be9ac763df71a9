#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "transport/shm/link_parts.h"
#include "transport/shm/messages.h"

namespace weightcast::transport::shm {

/// What is asked for over the socket once a link is ready: descriptors of regions, and the payload rings.
class RegionRequests {
 public:
  explicit RegionRequests(LinkParts& link) : link_(link) {}

  void Import(PeerRegion& region);
  Status On(const WantRegion& request);
  Status On(const RegionReply& reply, std::span<const UniqueFd> fds);
  Status On(const RingReply& reply, std::span<const UniqueFd> fds);
  /// Sends the own ring if it is wanted by now.
  Status Step();
  /// Maps nothing more.
  void Close() { mappings_.clear(); }

 private:
  void Ask();
  std::shared_ptr<PeerMapping> Map(const PeerRegion& region, const RegionReply& reply,
                                   std::span<const UniqueFd> fds);
  Status SendRing();
  void SettleRing();
  /// No mapping: copy, or the ring.
  void TakeOtherPath(PeerRegion& region);
  void WarnOfRing();

  LinkParts& link_;
  std::map<RegionId, std::weak_ptr<PeerMapping>> mappings_;
  std::map<RegionId, std::vector<RemoteRegion>> wanted_;  ///< Imports that wait for a descriptor.
  std::deque<RegionId> unasked_;                          ///< Of these, what is yet to be asked for.
  size_t asking_ = 0;                                     ///< Requests without a reply.
  bool ring_sent_ = false;
};

}  // namespace weightcast::transport::shm
