#pragma once

#include <cstdint>
#include <map>

#include "endpoint/channel.h"
#include "endpoint/transfers/sockets.h"
#include "endpoint/transfers/timers.h"

namespace weightcast::endpoint {

/// Channels on which nothing is said any more: each stays open until the peer has read what was sent last.
/// Belongs to the holder of progress.
class LingeringChannels {
 public:
  LingeringChannels(Sockets& sockets, Timers& timers) : sockets_(sockets), timers_(timers) {}

  /// Lets the peer read before the socket closes; one that has not proven itself only while few linger.
  void Add(Channel channel, bool proven);
  void CloseAll();

 private:
  struct Entry {
    Channel channel;
    uint64_t key = 0;
    TimerId limit;
  };
  /// Reads past what it says until it closes, a bounded amount at a time.
  void Read(uint64_t id);
  void End(std::map<uint64_t, Entry>::iterator ended);

  Sockets& sockets_;
  Timers& timers_;
  std::map<uint64_t, Entry> entries_;
  uint64_t last_ = 0;
};

}  // namespace weightcast::endpoint
