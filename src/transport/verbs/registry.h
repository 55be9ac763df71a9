#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/task_thread.h"
#include "memory/memory.h"
#include "transport/command_queue.h"
#include "transport/region_names.h"
#include "transport/verbs/gpu_memory.h"
#include "transport/verbs/nic.h"
#include "transport/verbs/regions.h"

namespace weightcast::transport::verbs {

/// What any thread may ask of a transport, kept for the holder of progress.
struct RemoveRegion {
  uint32_t id = 0;
};
struct AddImport {
  LinkId link{};
  uint32_t index = 0;
  ImportedRegion region;
};
/// A region's memory has been taken out of the NICs, but for those that do not let go of it.
struct RegionOut {
  struct Kept {
    size_t nic = 0;
    std::string why;
  };
  uint32_t id = 0;
  std::vector<Kept> kept;
};
using Command = std::variant<LocalRegion, RemoveRegion, AddImport, RegionOut>;

/// The half of a transport that other threads see: memory registered in every NIC, which names are taken, and
/// commands on their way. All functions are thread safe.
class Registry {
 public:
  using Nics = std::span<const std::unique_ptr<Nic>>;
  explicit Registry(const Settings& settings) : gpu_memory_(settings) {}
  Status Create(Nics nics);
  [[nodiscard]] CommandQueue<Command>& commands() { return commands_; }

  // --- Any thread
  /// The key for peers. Device memory may block in the driver.
  Result<std::string> Register(const RegionName& name, const DescribedMemory& memory, Access access);
  void Deregister(uint32_t id);
  Result<RemoteRegion> Import(LinkId link, const RegionName& name, uint64_t length, std::string_view key);

  // --- The holder of progress
  void OpenLink(LinkId link, Incarnation peer);
  void CloseLink(LinkId link);
  /// Takes its memory out of the NICs. nullopt: that takes long, or asks the device's driver; another thread
  /// does it, and leaves the outcome as a command.
  std::optional<RegionOut> TakeOut(LocalRegion& region);
  /// Its Deregistered is on its way: its id may be used again.
  void FreeRegion(uint32_t id);
  void FreeImport(LinkId link, RemoteRegion region);

 private:
  /// As few parts as all NICs take.
  [[nodiscard]] Result<Parts> Cut(uint64_t length) const;
  /// `prepared`: of device memory; null: host memory.
  Result<std::vector<ibv_mr*>> RegisterEverywhere(const DescribedMemory& memory, const Parts& parts,
                                                  Access access, const PreparedMemory* prepared) const;
  Status Claim(uint32_t id);

  /// Every page is unpinned, in every NIC: about 10 ms, and progress may be held so long.
  static constexpr uint64_t kSoon = 64U << 20;
  [[nodiscard]] RegionOut DeregisterEverywhere(uint32_t id, const Parts& parts,
                                               const std::vector<ibv_mr*>& registered) const;

  Nics nics_;
  CommandQueue<Command> commands_;  ///< Its mutex guards what follows.
  RegionNames names_;
  GpuMemory gpu_memory_;
  TaskThread deregistering_{"wc-deregister"};  ///< Last: its tasks use the others.
};

}  // namespace weightcast::transport::verbs
