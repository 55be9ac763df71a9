#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/listener.h"
#include "base/log.h"
#include "transport/shm/channel.h"
#include "transport/shm/context.h"
#include "transport/shm/messages.h"
#include "weightcast/clock.h"

namespace weightcast::transport::shm {

/// Listens at an abstract Unix name and hears who connects until they have said which link they mean.
/// Any process of the network namespace can connect: other users are sent away, the number of
/// strangers and their time are bounded.
class Acceptor {
 public:
  /// A greeting: the channel and its first message. The cookie in it is not yet checked.
  struct Guest {
    Channel channel;
    Channel::Incoming message;
    Hello hello;
  };
  static Result<Acceptor> Create(const Poller& poller);

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Takes those who wait at the listener.
  void Accept(const Poller& poller, TimePoint now);
  /// Stranger `number` has something to say. A greeting, or nothing (yet, or the stranger was sent away).
  std::optional<Guest> ReadHello(const Poller& poller, uint32_t number);
  /// Sends away who has not greeted in time; listens again after a rest.
  void Expire(const Poller& poller, TimePoint now);
  [[nodiscard]] std::optional<TimePoint> due() const;

 private:
  struct Stranger {
    Channel channel;
    TimePoint deadline;
  };
  void Dismiss(const Poller& poller, std::map<uint32_t, Stranger>::iterator stranger);

  void Listen(const Poller& poller, uint32_t events) const;

  Listener listener_;
  std::optional<TimePoint> rest_;  ///< Until then nobody is accepted: descriptors had run out.
  OncePerSecond complaint_;
  std::string name_;
  std::map<uint32_t, Stranger> strangers_;  ///< By number: the oldest first.
  uint32_t next_number_ = 0;
};

}  // namespace weightcast::transport::shm
