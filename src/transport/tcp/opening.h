#pragma once

#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "base/poller.h"
#include "transport/tcp/lane_connector.h"
#include "transport/tcp/link_shared.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::transport::tcp {

/// The first sockets of a link's lanes, until all are started.
class Opening {
 public:
  Opening(const Poller& poller, const LinkTerms& terms)
      : poller_(poller), terms_(terms), started_(terms.lanes) {}

  /// Initiator: connects, now that the terms are as the answer says.
  void Connect();
  void OnConnectReady(uint32_t lane, size_t attempt, TimePoint now);
  /// Responder: is this lane's start awaited? Its socket.
  [[nodiscard]] bool Awaits(uint32_t lane) const { return lane < started_.size() && !started_[lane].valid(); }
  void OnStart(uint32_t lane, UniqueFd socket) { started_[lane] = std::move(socket); }

  /// Goes on with what is due. Not ok: why the link cannot be opened.
  Status Step(TimePoint now);
  [[nodiscard]] TimePoint NextStep() const;
  /// All are here.
  [[nodiscard]] bool complete() const;
  [[nodiscard]] UniqueFd Take(uint32_t lane) { return std::move(started_[lane]); }

 private:
  const Poller& poller_;
  const LinkTerms& terms_;
  std::vector<LaneConnector> connectors_;  ///< Initiator, until all are welcomed.
  std::vector<UniqueFd> started_;          ///< By lane.
};

}  // namespace weightcast::transport::tcp
