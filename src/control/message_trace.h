#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "control/packet.h"
#include "protocol/trace.h"

namespace weightcast::control {

/// The last messages between a controller and its workers. One thread's.
class MessageTrace {
 public:
  static constexpr size_t kMost = 4096;
  /// Of packets that it keeps, in bytes.
  static constexpr size_t kMostBytes = size_t{16} << 20;

  struct Peer {
    const std::string& model;
    const protocol::WorkerName& worker;
  };
  void AddReceived(const Peer& from, uint64_t number, size_t bytes, const protocol::WorkerMessage& message);
  void AddSent(const Peer& to, uint64_t number, SharedPacket packet);

  /// The place of the next message; they count from 0.
  [[nodiscard]] uint64_t end() const { return first_ + entries_.size(); }
  /// What was said from this place on, as much as one answer holds.
  [[nodiscard]] protocol::Trace From(uint64_t place) const;

 private:
  struct Entry {
    protocol::TracedMessage message;
    SharedPacket sent;  ///< Put into words only for who asks: most are never read.
  };
  void Add(Entry entry);

  std::deque<Entry> entries_;
  uint64_t first_ = 0;
  size_t kept_ = 0;
};

}  // namespace weightcast::control
