#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "control/packet.h"

namespace weightcast::control {

/// What stands before a message, or a piece of one, on the wire.
struct Envelope {
  uint64_t number = 0;        ///< Of the message within its session and direction, from 1; 0: not numbered.
  uint64_t acknowledged = 0;  ///< All of the other side's numbers up to here have arrived.
  uint64_t session = 0;       ///< Hello: the session to go on with, 0: none. Welcome: the session.
  PartKind kind = PartKind::kWhole;
  friend bool operator==(const Envelope&, const Envelope&) = default;
};

/// One part, ready for the wire.
struct Outgoing : Envelope {
  SharedPacket packet;
  size_t part = 0;
};

/// One side of a session: what it sends, numbered and kept until the other side has acknowledged it, and
/// how much of the other side it has. Outlives streams: a new one begins where the old one was heard last.
/// Thread safe.
class SessionLink {
 public:
  /// Queues a message. Its number; 0 when it would keep more than the limits: the other side does not read.
  uint64_t Push(SharedPacket packet);
  /// Goes out next, unnumbered and not kept: Hello, Welcome, Refused, Heartbeat. `session`: see Envelope.
  void PushUrgent(SharedPacket packet, uint64_t session = 0);

  /// Until Rewind or Reset only urgent messages go out: it is not known yet what the other side has.
  void Hold();
  /// The next part to send; nullopt when there is none.
  std::optional<Outgoing> Next();

  /// The other side has everything up to `number`. False if that was never sent.
  bool Acknowledge(uint64_t number);
  /// A new stream, over which the other side has said that it has everything up to `acknowledged`.
  bool Rewind(uint64_t acknowledged);
  /// A new session: forgets everything, in both directions.
  void Reset();

  /// A message of the other side is here. False for a gap; `duplicate` when it has come before.
  bool Receive(uint64_t number, bool& duplicate);
  [[nodiscard]] uint64_t received() const { return received_.load(std::memory_order_relaxed); }
  /// Everything pushed has been acknowledged.
  [[nodiscard]] bool drained() const;

 private:
  struct Urgent {
    SharedPacket packet;
    uint64_t session = 0;
  };

  mutable std::mutex mutex_;
  std::deque<Urgent> urgent_;
  std::deque<SharedPacket> kept_;  ///< Numbers first_ ...
  uint64_t first_ = 1;
  size_t bytes_ = 0;
  size_t next_ = 0;       ///< Index into kept_ of what goes out next,
  size_t next_part_ = 0;  ///< and which part of it.
  bool held_ = false;
  std::atomic<uint64_t> received_{0};
};

}  // namespace weightcast::control
