#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "p2p/memories.h"
#include "p2p/operations.h"
#include "p2p/state.h"
#include "weightcast/status.h"

namespace weightcast::p2p {

/// Other engines: connections to them, channels, and what they say. Under the engine's mutex, unless said
/// otherwise.
class Peers {
 public:
  Peers(State& state, Memories& memories, Operations& operations)
      : s_(state), memories_(memories), operations_(operations) {}

  // Without the mutex.
  Result<Connection> ConnectTo(const std::vector<std::string>& addresses, const Identity& expected,
                               TimePoint deadline, const Interrupted& interrupted);
  Result<Connection> ConnectExactly(const EngineMetadata& peer, TimePoint deadline,
                                    const Interrupted& interrupted);
  void OnNotice(Connection connection);
  void OnDisconnect(const Identity& identity);

  PeerPtr PeerOf(const Connection& connection);
  Status LoseIfEnded(const PeerPtr& peer);
  void Lose(const PeerPtr& peer, const Status& reason);
  ChannelPtr AddChannel(const PeerPtr& peer, uint64_t wire, Gpu gpu);
  ChannelPtr SharedChannel(const PeerPtr& peer);
  static void TakeOff(Channel& channel);
  void EndChannel(Channel& channel, const Status& reason);

 private:
  void Heard(const PeerPtr& peer, const Open& open);
  void Heard(const PeerPtr& peer, const Close& close);
  void Heard(const PeerPtr& peer, const Describe& describe);
  void Heard(const PeerPtr& peer, const Want& want);
  void Heard(const PeerPtr& peer, const Forget& forget);
  void Heard(const PeerPtr& peer, Offer offer);
  void Heard(const PeerPtr& peer, const Withdraw& withdraw);
  void Heard(const PeerPtr& peer, const Abandon& abandon);
  void Heard(const PeerPtr& peer, const Finished& finished);
  void Heard(const PeerPtr& peer, const Received& received);
  [[nodiscard]] bool IsOutdated(const Connection& connection) const;
  ChannelPtr Named(const PeerPtr& peer, uint64_t wire);
  void EndForProtocolError(const PeerPtr& peer, const std::string& what);

  State& s_;
  Memories& memories_;
  Operations& operations_;
  uint64_t last_channel_ = 0;
};

}  // namespace weightcast::p2p
