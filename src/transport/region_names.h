#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/advice.h"
#include "base/strings.h"
#include "memory/memory.h"
#include "transport/region_table.h"
#include "transport/types.h"
#include "weightcast/status.h"

namespace weightcast::transport {

/// The names of regions that a transport has given out: ids of its own ones, numbers of a peer's. What any
/// thread asks for is answered from here, before the holder of progress has received it. Not thread safe:
/// guarded by the mutex of the commands that follow.
class RegionNames {
 public:
  /// kInvalidArgument: no region can have this name, or be of this memory.
  static Status Check(const RegionName& name, const DescribedMemory& memory) {
    if (memory.address == nullptr || memory.length == 0) {
      return {Code::kInvalidArgument, "a region needs at least one byte of memory; give at least one"};
    }
    if (name.generation == 0 || name.id >= kMaxRegionId) {
      return Error(Code::kInvalidArgument, "region ", name.id, ", generation ", name.generation,
                   ": ids are below ", kMaxRegionId, ", generations above 0", kReportBug);
    }
    return Status::Ok();
  }

  // --- Own regions
  /// Until Free. kInvalidArgument: somebody has it.
  Status Claim(uint32_t id) {
    if (ids_.insert(id).second) return Status::Ok();
    return Error(Code::kInvalidArgument, "region id ", id, " is in use", kReportBug);
  }
  [[nodiscard]] bool Has(uint32_t id) const { return ids_.contains(id); }
  void Free(uint32_t id) { ids_.erase(id); }

  // --- Peers' regions
  void OpenLink(LinkId link, Incarnation peer) { links_[link] = {.peer = peer, .next = 0, .free = {}}; }
  void CloseLink(LinkId link) { links_.erase(link); }
  /// A number that no other import of this link has, small. kUnavailable: the link is closed;
  /// kInvalidArgument: its peer is another; kExhausted: too many.
  Result<uint32_t> Import(LinkId link, const RegionName& name) {
    const auto found = links_.find(link);
    if (found == links_.end())
      return Status(Code::kUnavailable, "the link is closed; see the peer's log, connect again");
    Imports& imports = found->second;
    if (name.owner != imports.peer) {
      return Error(Code::kInvalidArgument, "the region belongs to incarnation ", name.owner,
                   ", but this connection leads to incarnation ", imports.peer,
                   "; import the region on a connection to its owner");
    }
    if (!imports.free.empty()) {
      const uint32_t index = imports.free.back();
      imports.free.pop_back();
      return index;
    }
    if (imports.next < kMaxImports) return imports.next++;
    return Error(Code::kExhausted, kMaxImports, " regions of this peer are imported; release some");
  }
  void Release(LinkId link, RemoteRegion region) {
    if (const auto found = links_.find(link); found != links_.end()) {
      found->second.free.push_back(static_cast<uint32_t>(region));
    }
  }

 private:
  /// Far more than any plan has; a peer's region descriptors must not make us grow without end.
  static constexpr uint32_t kMaxImports = 1U << 20;
  struct Imports {
    Incarnation peer = 0;
    uint32_t next = 0;
    std::vector<uint32_t> free;
  };

  std::set<uint32_t> ids_;
  std::map<LinkId, Imports> links_;
};

}  // namespace weightcast::transport
