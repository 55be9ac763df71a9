#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transport/shm/greeting.h"
#include "transport/shm/link_devices.h"
#include "transport/shm/link_fences.h"
#include "transport/shm/link_parts.h"
#include "transport/shm/region_requests.h"
#include "weightcast/clock.h"

namespace weightcast::transport::shm {

/// One link to one peer process, from the first blob to the last proof that the peer is out: its life, its
/// socket's messages, its turns. The rest is in its parts, which share a LinkParts.
class Link {
 public:
  using State = LinkParts::State;

  /// kExhausted when memory or descriptors do not suffice.
  static Result<std::unique_ptr<Link>> Create(Context& context, LinkId id, Incarnation peer,
                                              TimePoint deadline);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] LinkId id() const { return link_.id; }
  [[nodiscard]] State state() const { return link_.state; }
  [[nodiscard]] std::string Describe() const;
  [[nodiscard]] Greeting& greeting() { return greeting_; }
  [[nodiscard]] RegionRequests& regions() { return regions_; }
  [[nodiscard]] LinkFences& fences() { return fences_; }
  [[nodiscard]] LinkDevices& devices() { return devices_; }

  /// Initiator and responder, as Greeting's. Failures come as LinkDown.
  void Connect(const Invitation& answer);
  void Adopt(Channel channel, const Channel::Incoming& hello);

  // --- What the poller and the clock tell ---
  void OnChannel();
  void OnProcess();
  void OnTime(TimePoint now);
  /// When OnTime has something to do.
  [[nodiscard]] std::optional<TimePoint> due() const;

  // --- Bytes ---
  size_t Post(std::span<const Op> ops, Budget& budget);
  /// Handles what came, moves what waits. True if there was anything to do.
  bool Turn(Budget& budget);
  /// Operations of this side are under way.
  [[nodiscard]] bool sends() const { return link_.sender && !link_.sender->queue().empty(); }
  /// Asks the peer to ring for what we wait for; `fences`: also when its busy word changes.
  void Arm(bool fences);
  void Disarm();

  void Close();
  [[nodiscard]] bool closed() const {
    return fences_.closed() && link_.sources.empty() && (!link_.sender || link_.sender->queue().empty());
  }

 private:
  Link(Context& context, LinkId id, Incarnation peer, TimePoint deadline, OwnInbox inbox);

  Status OnMessage(Channel::Incoming& message);
  void BecomeReady();
  void HangUp();
  void Down(const Status& reason);

  LinkParts link_;
  Greeting greeting_{link_};
  RegionRequests regions_{link_};
  LinkFences fences_{link_};
  LinkDevices devices_{link_};
  TimePoint deadline_;
  TimePoint flush_at_{};  ///< When what waits for the socket is tried again.
  bool armed_ = false;
};

}  // namespace weightcast::transport::shm
