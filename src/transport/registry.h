#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <variant>

#include "transport/command_queue.h"
#include "transport/other_release.h"
#include "transport/region_names.h"
#include "transport/types.h"
#include "weightcast/status.h"

namespace weightcast::transport {

// What any thread may ask of a transport beside registering, kept for the thread that drives progress.
struct RemoveRegion {
  uint32_t id = 0;
};
template <typename Imported>
struct AddImport {
  LinkId link{};
  uint32_t index = 0;
  Imported region;
};

/// The half of a transport that other threads see: which names are taken, and commands on their way. Each
/// transport adds Register and Import. All functions are thread safe.
template <typename Local, typename Imported, typename... More>
class RegistryOf {
 public:
  using Command = std::variant<Local, RemoveRegion, AddImport<Imported>, More...>;
  [[nodiscard]] CommandQueue<Command>& commands() { return commands_; }

  // --- Any thread
  void Deregister(uint32_t id) {
    const std::lock_guard lock(commands_.mutex());
    if (names_.Has(id)) commands_.Put(RemoveRegion{id}, lock);
  }

  // --- The thread that drives progress
  void OpenLink(LinkId link, Incarnation peer) {
    const std::lock_guard lock(commands_.mutex());
    names_.OpenLink(link, peer);
  }
  void CloseLink(LinkId link) {
    const std::lock_guard lock(commands_.mutex());
    names_.CloseLink(link);
  }
  /// The region's Deregistered is on its way: its id may be used again.
  void FreeRegion(uint32_t id) {
    const std::lock_guard lock(commands_.mutex());
    names_.Free(id);
  }
  void FreeImport(LinkId link, RemoteRegion region) {
    const std::lock_guard lock(commands_.mutex());
    names_.Release(link, region);
  }

 protected:
  static Status CheckPeers(const RegionName& name) {
    if (name.generation != 0) return Status::Ok();
    return OtherRelease("the peer's region has no generation");
  }
  Result<RemoteRegion> Add(LinkId link, const RegionName& name, Imported region) {
    const std::lock_guard lock(commands_.mutex());
    WC_ASSIGN_OR_RETURN(const uint32_t index, names_.Import(link, name));
    commands_.Put(AddImport<Imported>{link, index, std::move(region)}, lock);
    return static_cast<RemoteRegion>(index);
  }

  CommandQueue<Command> commands_;  ///< Its mutex guards what follows.
  RegionNames names_;
};

}  // namespace weightcast::transport
