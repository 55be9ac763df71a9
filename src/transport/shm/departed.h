#pragma once

#include <cstdint>
#include <set>

#include "base/fd.h"
#include "base/poller.h"
#include "transport/shm/channel.h"
#include "transport/shm/source_trials.h"

namespace weightcast::transport::shm {

/// The peer of a link that is closed, which may still have device memory of this side mapped: its socket and
/// its process, until it has said that it has not, or is gone. A Deregister waits for it.
class DepartedPeer {
 public:
  /// Both descriptors are in `poller`; `process` is invalid where the peer's is not known.
  DepartedPeer(Channel channel, UniqueFd process, std::set<uint32_t> held, TrialCells cells)
      : channel_(std::move(channel)),
        process_(std::move(process)),
        held_(std::move(held)),
        cells_(std::move(cells)) {}

  /// Reads what the peer has said. True: nothing is to be waited for any more.
  bool Look(const Poller& poller);
  [[nodiscard]] bool Holds(uint32_t region) const { return held_.contains(region); }

 private:
  bool ReadMessages();
  void CloseChannel(const Poller& poller);

  Channel channel_;
  UniqueFd process_;
  std::set<uint32_t> held_;  ///< Ids of regions.
  TrialCells cells_;
};

}  // namespace weightcast::transport::shm
