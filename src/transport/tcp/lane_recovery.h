#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "transport/backoff.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/lane_connector.h"
#include "transport/tcp/link_shared.h"
#include "weightcast/clock.h"

namespace weightcast::transport::tcp {

/// By number.
using Lanes = std::vector<std::unique_ptr<Lane>>;

/// The lanes of a link that is ready: how each fails and begins again.
///
/// A lane that fails while another one is left begins again, with a new socket under the same number and the
/// next *generation* (docs/wire.md, "lanes that fail"). In between both sides tell each other over the other
/// lanes that they have hung up: from then on nothing of the old socket can land, what it held completes, and
/// the initiator connects again, first soon and then more and more seldom.
class LaneRecovery final : private LaneOwner {
 public:
  /// `lanes`: of the link; their first generation is begun with Add.
  LaneRecovery(const LinkShared& shared, Lanes& lanes) : shared_(shared), lanes_(lanes) {}

  Status Add(UniqueFd socket);
  /// Responder: does this lane begin again with this generation?
  [[nodiscard]] bool Awaits(uint32_t index, uint32_t generation) const;
  void OnStart(uint32_t index, UniqueFd socket);
  void OnConnectReady(uint32_t index, size_t attempt, TimePoint now);
  /// What is due by time alone; and when that will be.
  void Step(TimePoint now);
  [[nodiscard]] TimePoint NextStep() const;
  /// Goes on with lanes that have hung up and of which the last copy is over now.
  void EndCopying();
  /// No lane begins again.
  void Stop();

 private:
  /// What a lane's number has been through.
  struct Number {
    uint32_t generation = 0;
    bool over = false;  ///< The peer has hung up too.
    /// We have hung up, and may say so only when our copies are over; and whether the peer has asked.
    bool copying = false;
    bool asked = false;
    Backoff backoff;
    // At the initiator, once it is over.
    TimePoint give_up;
    std::optional<LaneConnector> connector;
  };

  void OnHungUp() override;
  std::string_view OnLaneOver(uint32_t carrier, const Frame& frame) override;
  void Settle(uint32_t index);
  void StepOne(uint32_t index, TimePoint now);
  void Begin(uint32_t index, UniqueFd socket);
  std::unique_ptr<Lane> NewLane(uint32_t index, UniqueFd socket);

  const LinkShared& shared_;
  Lanes& lanes_;
  std::vector<Number> numbers_;  ///< One for each lane.
};

}  // namespace weightcast::transport::tcp
