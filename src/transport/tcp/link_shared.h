#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/poller.h"
#include "base/socket.h"
#include "transport/event_queue.h"
#include "transport/grant_table.h"
#include "transport/tcp/copiers.h"
#include "transport/tcp/greeting.h"
#include "transport/tcp/local_region.h"
#include "transport/types.h"
#include "weightcast/clock.h"
#include "weightcast/settings.h"

namespace weightcast::transport::tcp {

/// What a link is opened with.
struct LinkTerms {
  LinkId id{};
  Role role = Role::kInitiator;
  Cookie ours{};
  Cookie theirs{};  ///< The initiator learns it from the answer, and the addresses.
  uint32_t lanes = 1;
  uint32_t depth = 1;
  TimePoint deadline;
  Duration lease{};
  std::optional<uint8_t> traffic_class;    ///< Of this side's packets; nullopt: the system's.
  std::vector<SocketAddress> addresses{};  ///< Initiator: the peer's.
  bool spread = false;                     ///< Initiator: lanes begin with different ones.
};

/// What all links of a transport have in common. Outlives them.
struct Shared {
  const Settings& settings;
  const Poller& poller;
  Regions& regions;
  EventQueue& events;
  uint32_t& wanting;     ///< How many lanes want attention though no socket may say so.
  bool& moved;           ///< Set when bytes went in or out.
  TimePoint& next_step;  ///< Set to the past when a link's NextStep may have come nearer.
};

/// What all lanes of a link have in common. Outlives them.
struct LinkShared : Shared {
  const LinkTerms& terms;
  const GrantTable& grants;
  Copiers& copiers;
};

}  // namespace weightcast::transport::tcp
