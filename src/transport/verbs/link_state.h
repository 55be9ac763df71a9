#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "transport/event_queue.h"
#include "transport/verbs/control.h"
#include "transport/verbs/lane.h"
#include "transport/verbs/leases.h"
#include "transport/verbs/local_region.h"
#include "transport/verbs/peer_grants.h"
#include "transport/verbs/peer_regions.h"
#include "weightcast/clock.h"
#include "weightcast/settings.h"

namespace weightcast::transport::verbs {

/// What all links of a transport have in common. Outlives them.
struct Shared {
  const Settings& settings;
  Regions& regions;
  EventQueue& events;
  bool& moved;           ///< Set when something has completed or arrived.
  TimePoint& next_step;  ///< Set to the past when a link's NextStep may have come nearer.
  /// Links whose Continue has something to do.
  std::vector<LinkId>& touched;
};

/// What a link knows from its beginning.
struct LinkTerms {
  LinkId id{};
  Role role = Role::kInitiator;
  TimePoint deadline;  ///< To become ready.
  uint32_t lanes = 0;  ///< Wanted; 0: by the number of NICs and peers.
};

/// What the parts of a link have in common: Rails, QueuePairs, Lanes, Fences.
///
/// Its queue pairs have numbers: first one control queue pair for each rail, then the lanes, rail by rail in
/// turn.
class LinkState {
 public:
  enum class Phase : uint8_t {
    kNew,       ///< Initiator: offered.
    kProbing,   ///< Initiator: established, probes are out.
    kStarting,  ///< Initiator: Start is out. Responder: waits for it.
    kReady,
    kDown,
  };
  LinkState(const Shared& of_transport, const LinkTerms& of_link);

  [[nodiscard]] bool initiator() const { return terms.role == Role::kInitiator; }
  /// Nothing begins on it any more.
  [[nodiscard]] bool over() const { return closed || phase == Phase::kDown; }
  /// Nobody is reached over it: it is down, or not established yet.
  [[nodiscard]] bool silent() const { return phase == Phase::kDown || control == nullptr; }
  /// How many queue pairs are for control.
  [[nodiscard]] uint32_t rails() const { return control->rails(); }
  [[nodiscard]] bool IsControl(uint32_t queue) const { return queue < rails(); }
  /// How many work requests it has room for.
  [[nodiscard]] uint32_t DepthOf(uint32_t queue) const {
    return IsControl(queue) ? Control::kDepth : Lane::kRequests;
  }
  [[nodiscard]] Lane& LaneOf(uint32_t queue) const { return *lanes[queue - rails()]; }
  void PumpLanes() const;
  void Say(const ControlMessage& message);
  /// Asks the peer whether this grant is open, unless that has been asked.
  void AskFor(const GrantName& grant);
  /// Its Continue has something to do.
  void Touch();
  /// It ends with the next Link::EndBroken.
  void GoDown(Status reason);

  const Shared shared;
  const LinkTerms terms;
  Phase phase = Phase::kNew;
  bool closed = false;
  bool touched = false;
  std::optional<Status> going_down;
  const uint64_t own_cookie;
  uint64_t peer_cookie = 0;
  std::unique_ptr<Control> control;
  PeerRegions imports;
  Leases leases;
  PeerGrants grants;
  std::vector<std::unique_ptr<Lane>> lanes;
};

}  // namespace weightcast::transport::verbs
