#include "transport/tcp/registry.h"

#include <utility>

#include "base/strings.h"
#include "memory/populate.h"

namespace weightcast::transport::tcp {
namespace {
/// Far more than any plan has; a peer's descriptors must not make us grow without end.
constexpr uint32_t kMaxImports = 1U << 20;
}  // namespace

Status Registry::Create() { return commands_.Create(); }

Status Registry::Register(const RegionName& name, const Memory& memory, Access access) {
  if (memory.kind != MemoryKind::kHost) {
    return {Code::kInvalidArgument, "tcp moves host memory only; stage device memory through host memory"};
  }
  if (memory.address == nullptr || memory.length == 0) {
    return {Code::kInvalidArgument, "a region needs at least one byte of memory"};
  }
  if (name.generation == 0 || name.id >= kMaxRegionId) {
    return {Code::kInvalidArgument, StrCat("region ", name.id, ", generation ", name.generation,
                                           ": ids are below ", kMaxRegionId, ", generations above 0")};
  }
  WC_RETURN_IF_ERROR(Populate({memory.address, memory.length}, access));
  const std::lock_guard lock(commands_.mutex());
  if (!regions_.insert(name.id).second) {
    return {Code::kInvalidArgument, StrCat("region id ", name.id, " is in use; deregister it first")};
  }
  commands_.Put(LocalRegion{.base = memory.address,
                            .length = memory.length,
                            .id = name.id,
                            .generation = name.generation,
                            .access = access,
                            .live = true,
                            .uses = 0},
                lock);
  return Status::Ok();
}

void Registry::Deregister(uint32_t id) {
  const std::lock_guard lock(commands_.mutex());
  if (regions_.contains(id)) commands_.Put(RemoveRegion{id}, lock);
}

Result<RemoteRegion> Registry::Import(LinkId link, const RegionName& name, uint64_t length,
                                      std::string_view key) {
  if (!key.empty()) return Status(Code::kProtocol, "the peer's key of a region is not tcp's");
  if (name.generation == 0) return Status(Code::kProtocol, "the peer's region has no generation");
  const std::lock_guard lock(commands_.mutex());
  const auto found = links_.find(link);
  if (found == links_.end()) return Status(Code::kUnavailable, "the link to this peer is closed");
  Imports& imports = found->second;
  if (name.owner != imports.peer) {
    return Status(Code::kInvalidArgument, "the region belongs to another process than this link's peer");
  }
  uint32_t index = imports.next;
  if (!imports.free.empty()) {
    index = imports.free.back();
    imports.free.pop_back();
  } else if (index < kMaxImports) {
    ++imports.next;
  } else {
    return Status(Code::kExhausted, StrCat(kMaxImports, " regions of this peer are imported; release some"));
  }
  commands_.Put(AddImport{link, index, {name.id, name.generation, length}}, lock);
  return static_cast<RemoteRegion>(index);
}

void Registry::OpenLink(LinkId link, Incarnation peer) {
  const std::lock_guard lock(commands_.mutex());
  links_[link] = {.peer = peer, .next = 0, .free = {}};
}

void Registry::CloseLink(LinkId link) {
  const std::lock_guard lock(commands_.mutex());
  links_.erase(link);
}

void Registry::FreeRegion(uint32_t id) {
  const std::lock_guard lock(commands_.mutex());
  regions_.erase(id);
}

void Registry::FreeImport(LinkId link, RemoteRegion region) {
  const std::lock_guard lock(commands_.mutex());
  if (const auto found = links_.find(link); found != links_.end()) {
    found->second.free.push_back(static_cast<uint32_t>(region));
  }
}

}  // namespace weightcast::transport::tcp
