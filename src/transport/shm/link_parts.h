#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/engines.h"
#include "transport/shm/channel.h"
#include "transport/shm/context.h"
#include "transport/shm/inbox.h"
#include "transport/shm/outbox.h"
#include "transport/shm/receiver.h"
#include "transport/shm/sender.h"
#include "transport/shm/source_maps.h"
#include "transport/shm/source_offers.h"
#include "transport/shm/staging.h"
#include "transport/types.h"

namespace weightcast::transport::shm {

/// What the parts of a link have in common: Greeting, RegionRequests, LinkFences, LinkDevices. Stays at its
/// address.
struct LinkParts {
  enum class State : uint8_t {
    kOpening,  ///< Blobs, greeting, trial.
    kReady,
    kHungUp,   ///< The socket is closed; soon it shows whether the process has ended.
    kDown,     ///< LinkDown has been told; CloseLink is awaited.
    kClosing,  ///< LinkClosed follows when the peer is out for certain.
  };
  LinkParts(Context& of_transport, LinkId of_link, Incarnation of_peer, OwnInbox own)
      : context(of_transport),
        id(of_link),
        peer(of_peer),
        inbox(std::move(own)),
        engines(of_transport.copies),
        offers(of_transport, channel),
        sources(of_transport, channel, engines) {}

  [[nodiscard]] bool over() const { return state == State::kDown || state == State::kClosing; }
  /// For texts.
  [[nodiscard]] std::string PeerName() const;
  [[nodiscard]] uint64_t KeyOf(PollKind kind) const { return PollKey(kind, static_cast<uint32_t>(id)); }
  void CloseChannel();
  /// What the poller tells of the socket.
  void UpdateInterest() const;
  /// The socket is needed until neither side has the other's device memory mapped.
  [[nodiscard]] bool channel_needed() const { return !offers.empty() || !sources.empty(); }

  Context& context;
  const LinkId id;
  const Incarnation peer;
  State state = State::kOpening;
  OwnInbox inbox;
  Channel channel;
  bool bye_seen = false;
  UniqueFd pidfd;
  int pid = 0;
  Ptracer::Right tracer;  ///< The peer copies to and from here.
  std::optional<Outbox> outbox;
  device::Engines engines;
  SourceOffers offers;
  SourceMaps sources;
  Paths paths;
  std::optional<Staging> staging;
  std::optional<Sender> sender;
  std::optional<Receiver> receiver;
};

}  // namespace weightcast::transport::shm
