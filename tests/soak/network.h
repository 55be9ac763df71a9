#pragma once

#include <array>
#include <string>

#include "soak/board.h"

namespace weightcast::soak {

/// A network namespace for each process of a cluster (or of a pair), joined by a bridge: wires that can be
/// pulled, and packets that can be dropped. Made with `ip` and `nft`; needs root. All of it is gone with this
/// object.
class Network {
 public:
  /// `number` tells clusters apart.
  explicit Network(int number, size_t processes = kProcesses);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  [[nodiscard]] std::string AddressOf(size_t process) const;
  [[nodiscard]] std::string NamespaceOf(size_t process) const;
  /// Pulls the wire of a process, or puts it back.
  void SetLink(size_t process, bool up) const;
  /// Drops this share of the packets that come to a process; 0: none any more.
  void DropPackets(size_t process, int percent) const;

  enum class Break { kReset, kMute };
  /// Resets one of a process's TCP connections, or lets none of its packets through any more; which one,
  /// `choice` tells. False: it has none, or this machine cannot. DropPackets(process, 0) ends a mute one's
  /// trouble.
  [[nodiscard]] bool BreakOne(size_t process, Break how, unsigned choice) const;

 private:
  const std::string prefix_;
  const int number_;
  const size_t processes_;
};

/// Whether this machine lets us make network namespaces.
bool CanMakeNetworks();

}  // namespace weightcast::soak
