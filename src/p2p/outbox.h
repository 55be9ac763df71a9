#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "weightcast/endpoint.h"

namespace weightcast::p2p {

/// Sends notices in order; those for which a peer has no room now go out later. Thread safe; never waits.
class Outbox {
 public:
  Outbox() = default;
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  ~Outbox();

  /// What cannot be sent because the connection has ended is dropped: its peer's end is told.
  /// False: too much waits for this peer already.
  bool Post(const Connection& connection, std::string bytes);
  void Drop(Incarnation peer);

 private:
  static constexpr size_t kMost = 1 << 20;  ///< Notices that wait for one peer.
  struct Queue {
    Connection connection;
    std::deque<std::string> waiting;
  };
  static bool SendAll(Queue& queue);
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Incarnation, Queue> queues_;  ///< None is empty.
  bool stop_ = false;
  std::thread thread_;  ///< From the first notice that had to wait.
};

}  // namespace weightcast::p2p
