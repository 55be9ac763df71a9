#include "transport/tcp/registry.h"

#include <utility>

#include "base/strings.h"
#include "memory/populate.h"
#include "transport/tcp/region_table.h"

namespace weightcast::transport::tcp {
namespace {
/// Far more than any plan has; a peer's descriptors must not make us grow without end.
constexpr uint32_t kMaxImports = 1U << 20;
}  // namespace

Status Registry::Create() {
  WC_ASSIGN_OR_RETURN(wake_, WakeFd::Create());
  return Status::Ok();
}

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
  const std::lock_guard lock(mutex_);
  if (!regions_.insert(name.id).second) {
    return {Code::kInvalidArgument, StrCat("region id ", name.id, " is in use; deregister it first")};
  }
  Put(AddRegion{name, memory, access});
  return Status::Ok();
}

void Registry::Deregister(uint32_t id) {
  const std::lock_guard lock(mutex_);
  if (regions_.contains(id)) Put(RemoveRegion{id});
}

Result<RemoteRegion> Registry::Import(LinkId link, const RegionName& name, uint64_t length,
                                      std::string_view key) {
  if (!key.empty()) return Status(Code::kProtocol, "the peer's key of a region is not tcp's");
  if (name.generation == 0) return Status(Code::kProtocol, "the peer's region has no generation");
  const std::lock_guard lock(mutex_);
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
  Put(AddImport{link, index, {name.id, name.generation, length}});
  return static_cast<RemoteRegion>(index);
}

void Registry::OpenLink(LinkId link, Incarnation peer) {
  const std::lock_guard lock(mutex_);
  links_[link] = {.peer = peer, .next = 0, .free = {}};
}

void Registry::CloseLink(LinkId link) {
  const std::lock_guard lock(mutex_);
  links_.erase(link);
}

void Registry::FreeRegion(uint32_t id) {
  const std::lock_guard lock(mutex_);
  regions_.erase(id);
}

void Registry::FreeImport(LinkId link, RemoteRegion region) {
  const std::lock_guard lock(mutex_);
  if (const auto found = links_.find(link); found != links_.end()) {
    found->second.free.push_back(static_cast<uint32_t>(region));
  }
}

void Registry::Put(Command command) {
  commands_.push_back(std::move(command));
  // Sequentially consistent, as in Arm: either it sees this command, or this sees that it is armed.
  pending_.store(true, std::memory_order_seq_cst);
  if (!armed_.load(std::memory_order_seq_cst)) return;
  wake_.Wake();
  woken_.store(true, std::memory_order_release);  // Last: whoever sees it drains what was written.
}

void Registry::Take(std::vector<Command>& commands) {
  commands.clear();
  const std::lock_guard lock(mutex_);
  commands.swap(commands_);
  pending_.store(false, std::memory_order_release);
}

bool Registry::Arm() {
  armed_.store(true, std::memory_order_seq_cst);
  if (!pending_.load(std::memory_order_seq_cst)) return true;
  armed_.store(false, std::memory_order_relaxed);
  return false;
}

void Registry::Disarm() {
  armed_.store(false, std::memory_order_relaxed);
  // A wake-up that comes after this is drained by the next.
  if (woken_.load(std::memory_order_acquire) && woken_.exchange(false)) wake_.Drain();
}

}  // namespace weightcast::transport::tcp
