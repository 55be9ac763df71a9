#include "transport/shm/regions.h"

#include <fcntl.h>

#include <cstring>
#include <span>
#include <utility>

#include "base/advice.h"
#include "base/bytes.h"
#include "base/strings.h"
#include "memory/populate.h"
#include "transport/other_release.h"
#include "transport/shm/shared_memory.h"

namespace weightcast::transport::shm {
namespace {

constexpr uint8_t kKeyVersion = 2;

/// A descriptor of our own for peers that map the region; the caller's may be closed or reused.
UniqueFd ForPeers(const DescribedMemory& memory, Access access) {
  if (access == Access::kLocal || memory.fd < 0) return {};
  if (memory.fd_offset > UINT64_MAX - memory.length) return {};
  if (!CannotShrink(memory.fd, memory.fd_offset + memory.length)) return {};
  return UniqueFd(fcntl(memory.fd, F_DUPFD_CLOEXEC, 0));
}

}  // namespace

std::string EncodeKey(const RegionKey& key) {
  ByteWriter out;
  out.Put(kKeyVersion, key.access, key.mappable, key.address, key.length, key.kind, key.device);
  return out.Take();
}

Result<RegionKey> DecodeKey(std::string_view bytes) {
  ByteReader in(bytes);
  const auto version = in.Get<uint8_t>();
  uint8_t mappable = 0;
  RegionKey key;
  in.Get(key.access, mappable, key.address, key.length, key.kind, key.device);
  if (!in.AtEnd() || version != kKeyVersion || key.access > Access::kRead || mappable > 1 ||
      key.kind > MemoryKind::kDevice || key.address > UINT64_MAX - key.length) {
    return OtherRelease("the peer's key of a shm region is malformed");
  }
  key.mappable = mappable == 1;
  return key;
}

Status Regions::Check(const RegionName& name) const {
  if (name.owner != self_ || name.generation == 0) {
    return Error(Code::kInvalidArgument, "a region was registered for incarnation ", name.owner,
                 ", generation ", name.generation,
                 "; the generation must be above 0, and this process is incarnation ", self_, kReportBug);
  }
  if (name.id >= kMaxRegions) {
    return Error(Code::kExhausted, "at most ", kMaxRegions, " regions can be registered at once; ",
                 "register larger pieces of memory");
  }
  return Status::Ok();
}

Result<std::string> Regions::Add(const RegionName& name, const DescribedMemory& memory, Access access,
                                 std::shared_ptr<const DeviceRegion> device) {
  WC_RETURN_IF_ERROR(Check(name));
  const bool host = device == nullptr;
  if (host) WC_RETURN_IF_ERROR(Populate(std::span(memory.address, memory.length), access));
  LocalRegion region{.name = name,
                     .access = access,
                     .address = memory.address,
                     .length = memory.length,
                     .fd = host ? ForPeers(memory, access) : UniqueFd(),
                     .fd_offset = memory.fd_offset,
                     .live = true,
                     .device = std::move(device)};
  const RegionKey key{.access = access,
                      .mappable = region.fd.valid(),
                      .address = reinterpret_cast<uint64_t>(memory.address),
                      .length = memory.length,
                      .kind = host ? MemoryKind::kHost : MemoryKind::kDevice,
                      .device = host ? DeviceUuid{} : region.device->uuid()};
  {
    const std::lock_guard lock(mutex_);
    if (!ids_.insert(name.id).second) {
      return Error(Code::kInvalidArgument, "region ", name.id, " is registered already", kReportBug);
    }
    changes_.push_back({.add = true, .id = name.id, .region = std::move(region)});
    pending_.store(true, std::memory_order_seq_cst);
  }
  // Of every access: each may be the source of a pull.
  fence_->generation[name.id].store(name.generation, std::memory_order_seq_cst);
  return EncodeKey(key);
}

bool Regions::Remove(uint32_t id) {
  const std::lock_guard lock(mutex_);
  if (!ids_.contains(id) || !removing_.insert(id).second) return false;
  fence_->generation[id].store(0, std::memory_order_seq_cst);
  changes_.push_back({.add = false, .id = id, .region = {}});
  pending_.store(true, std::memory_order_seq_cst);
  return true;
}

void Regions::Refresh() {
  const std::lock_guard lock(mutex_);
  pending_.store(false, std::memory_order_seq_cst);
  for (Change& change : changes_) {
    if (change.id >= table_.size()) table_.resize(change.id + 1);
    if (!change.add) removed_.push_back(change.id);
    table_[change.id] = std::move(change.region);
  }
  changes_.clear();
}

const LocalRegion* Regions::Find(uint32_t id) {
  if (id < table_.size() && table_[id].live) return &table_[id];
  if (!pending()) return nullptr;
  Refresh();
  return id < table_.size() && table_[id].live ? &table_[id] : nullptr;
}

const LocalRegion* Regions::Find(uint32_t id, uint32_t generation) {
  const LocalRegion* region = Find(id);
  return region != nullptr && region->name.generation == generation ? region : nullptr;
}

std::vector<uint32_t> Regions::TakeRemoved() {
  if (pending()) Refresh();
  return std::exchange(removed_, {});
}

void Regions::Forget(uint32_t id) {
  const std::lock_guard lock(mutex_);
  ids_.erase(id);
  removing_.erase(id);
}

}  // namespace weightcast::transport::shm
