#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fake_ibverbs/fabric.h"
#include "transport/transport.h"
#include "verbs_cluster/metered.h"

namespace weightcast::transport::verbs {

constexpr uint64_t kChunk = 64 << 10;

/// Ends the program where it does not hold.
void Require(bool condition, std::string_view what);
/// One of the bounds: goes on, and fails in the end.
void Expect(bool condition, std::string_view what);
/// Whether all bounds have held.
bool AllHeld();

/// Open descriptors of this process.
size_t Descriptors();

/// All on one InfiniBand network. `small`: the devices of a peer, which has one link.
fake::HostConfig HostWith(int nics, bool small);

/// A process: its transport, one region of it, and what it has heard.
struct Process {
  Process(fake::Fabric& fabric, const fake::HostConfig& config, uint32_t nth, uint64_t bytes);
  void Register(Access access);
  /// Takes all events that are there.
  void Pump();

  std::shared_ptr<Metered> verbs;
  std::vector<std::byte> memory;
  std::unique_ptr<Transport> transport;
  Incarnation self = 0;
  RegionName name;
  std::string key;
  uint32_t ready = 0;
  uint32_t fewest = UINT32_MAX;  ///< Lanes of a link.
  uint32_t most = 0;
  uint32_t signals = 0;
  uint32_t completed = 0;

 private:
  void Take(const Event& event);
};

}  // namespace weightcast::transport::verbs
