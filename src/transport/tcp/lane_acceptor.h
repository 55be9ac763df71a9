#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/fd.h"
#include "base/half_open.h"
#include "base/listener.h"
#include "base/log.h"
#include "base/poller.h"
#include "base/socket.h"
#include "transport/tcp/greeting.h"
#include "weightcast/clock.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::transport::tcp {

/// The listening socket and those who have connected to it but not yet started a lane: bounded in
/// number and time, for anyone can connect.
class LaneAcceptor {
 public:
  /// Who knows which links are awaited.
  class Host {
   public:
    virtual ~Host() = default;
    /// The cookie to welcome this hello with, or nullptr: nobody awaits it.
    virtual const Cookie* OnHello(const Greeting& hello) = 0;
    /// The initiator has chosen this socket for the lane.
    virtual void OnStart(const Greeting& start, UniqueFd socket) = 0;
  };

  /// Listens; the poller tells the listener under `listener_key`, visitors under `visitor_key` + number.
  LaneAcceptor(const Poller& poller, uint64_t listener_key, uint64_t visitor_key, Duration patience,
               Duration lease);
  ~LaneAcceptor();
  Status Listen(const Settings& settings);
  /// Of all sockets here; nullopt: the system's. Known once it listens.
  [[nodiscard]] std::optional<uint8_t> traffic_class() const { return traffic_class_; }

  /// Addresses that peers may try, loopback only for a peer on this host.
  [[nodiscard]] std::vector<SocketAddress> Addresses(bool same_host) const;
  /// The user has chosen addresses or interfaces: each is meant to be used.
  [[nodiscard]] bool chosen() const { return chosen_; }

  void OnConnect(TimePoint now, Host& host);
  void OnReady(uint64_t visitor, Host& host);
  /// Sends away who has been silent for too long.
  void Step(TimePoint now);
  [[nodiscard]] TimePoint NextStep() const;

 private:
  struct Visitor {
    UniqueFd fd;
    TimePoint deadline;
    bool welcomed = false;
    GreetingBytes bytes{};
    size_t got = 0;
  };
  UniqueFd AcceptOne(TimePoint now);
  void Admit(UniqueFd fd, TimePoint now, Host& host);
  void Watch(uint32_t events) const;
  /// False: send it away. Moves the socket out when it has started.
  bool Greet(Visitor& visitor, Host& host);
  void Dismiss(std::map<uint64_t, Visitor>::iterator visitor);

  const Poller& poller_;
  uint64_t listener_key_;
  uint64_t visitor_key_;
  Duration patience_;
  Duration lease_;
  Listener listener_;
  TimePoint rest_ = TimePoint::max();  ///< Until then nobody is accepted; max: no rest.
  OncePerSecond complaint_;
  UniqueFd spare_;  ///< Given up to turn a visitor away when descriptors run out.
  std::optional<uint8_t> traffic_class_;
  SocketAddress bound_;
  std::string interfaces_;
  std::vector<SocketAddress> advertised_;
  bool chosen_ = false;
  std::map<uint64_t, Visitor> visitors_;  ///< In the order of arrival, so of deadlines.
  uint64_t next_visitor_ = 0;
  HalfOpen half_open_;  ///< Visitors who have not shown the cookie of a link.
};

}  // namespace weightcast::transport::tcp
