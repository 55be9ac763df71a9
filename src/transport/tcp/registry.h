#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "memory/memory.h"
#include "transport/command_queue.h"
#include "transport/region_names.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/regions.h"
#include "transport/types.h"

namespace weightcast::transport::tcp {

/// What any thread may ask of a transport, kept for the thread that drives progress.
struct RemoveRegion {
  uint32_t id = 0;
};
struct AddImport {
  LinkId link{};
  uint32_t index = 0;
  ImportedRegion region;
};
using Command = std::variant<LocalRegion, RemoveRegion, AddImport>;

/// The half of a transport that other threads see: which names are taken, and commands on their way.
/// All functions are thread safe.
class Registry {
 public:
  Status Create();
  [[nodiscard]] int wake_fd() const { return commands_.wake_fd(); }

  // --- Any thread
  /// `device`: of device memory, which the driver has confirmed.
  Status Register(const RegionName& name, const DescribedMemory& memory, Access access,
                  const StagedDevice* device);
  void Deregister(uint32_t id);
  Result<RemoteRegion> Import(LinkId link, const RegionName& name, uint64_t length, std::string_view key);

  // --- The thread that drives progress
  void OpenLink(LinkId link, Incarnation peer);
  void CloseLink(LinkId link);
  /// The region's Deregistered is on its way: its id may be used again.
  void FreeRegion(uint32_t id);
  void FreeImport(LinkId link, RemoteRegion region);
  [[nodiscard]] CommandQueue<Command>& commands() { return commands_; }

 private:
  CommandQueue<Command> commands_;  ///< Its mutex guards what follows.
  RegionNames names_;
};

}  // namespace weightcast::transport::tcp
