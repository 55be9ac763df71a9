#include "transport/verbs/registry.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "memory/populate.h"
#include "transport/other_release.h"

namespace weightcast::transport::verbs {
namespace {

/// What the hardware lets peers do: it knows no grants, so a region under grants is open to writes.
int FlagsFor(Access access) {
  switch (access) {
    case Access::kLocal:
      return IBV_ACCESS_LOCAL_WRITE;
    case Access::kGranted:
      return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    case Access::kReadWrite:
      return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    case Access::kRead:
      return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  }
  return 0;
}

}  // namespace

Status Registry::Create(Nics nics) {
  nics_ = nics;
  return commands_.Create();
}

Status Registry::Claim(uint32_t id) {
  const std::lock_guard lock(commands_.mutex());
  return names_.Claim(id);
}

Result<Parts> Registry::Cut(uint64_t length) const {
  uint64_t most = length;
  std::string_view least;
  for (const auto& nic : nics_) {
    if (nic->device().dead() || nic->device().limits().max_mr_size >= most) continue;
    most = nic->device().limits().max_mr_size;
    least = nic->device().name();
  }
  if (const auto parts = CutInto(most, length)) return *parts;
  return Error(Code::kExhausted, least, " registers at most ", most,
               " bytes at once, and a region has at most ", Parts::kMost, " such parts; register the ",
               length, " bytes as several regions");
}

Result<std::vector<ibv_mr*>> Registry::RegisterEverywhere(const DescribedMemory& memory, const Parts& parts,
                                                          Access access,
                                                          const PreparedMemory* prepared) const {
  std::vector<ibv_mr*> made;
  for (const auto& nic : nics_) {
    for (uint64_t at = 0; at < memory.length; at += std::min(parts.length, memory.length - at)) {
      const uint64_t length = std::min(parts.length, memory.length - at);
      auto region = prepared == nullptr
                        ? nic->domain().RegisterMemory(memory.address + at, length, FlagsFor(access))
                        : nic->domain().RegisterDeviceMemory(
                              memory.address + at, length, FlagsFor(access), prepared->buffer.fd.get(),
                              prepared->buffer.offset + at, prepared->why_none);
      if (!region.ok() && nic->device().dead()) region = nullptr;  // Nothing goes over it any more.
      if (!region.ok()) {
        for (size_t i = 0; i < made.size(); ++i) {  // Nobody has a key of it yet.
          const Status undone = nics_[i / parts.count]->domain().DeregisterMemory(made[i]);
          if (!undone.ok()) WC_LOG(kError, "verbs: ", undone.message());
        }
        return region.status();
      }
      made.push_back(*region);
    }
  }
  return made;
}

Result<std::string> Registry::Register(const RegionName& name, const DescribedMemory& memory, Access access) {
  WC_RETURN_IF_ERROR(RegionNames::Check(name, memory));
  WC_ASSIGN_OR_RETURN(const Parts parts, Cut(memory.length));
  const bool device = memory.kind == MemoryKind::kDevice;
  PreparedMemory prepared;
  if (device) {
    WC_ASSIGN_OR_RETURN(prepared, gpu_memory_.Prepare(memory));
  } else {
    WC_RETURN_IF_ERROR(Populate({memory.address, memory.length}, access));
  }
  WC_RETURN_IF_ERROR(Claim(name.id));
  auto registered = RegisterEverywhere(memory, parts, access, device ? &prepared : nullptr);
  const std::lock_guard lock(commands_.mutex());
  if (!registered.ok()) {
    names_.Free(name.id);
    return registered.status();
  }
  RegionKey key{.id = name.id,
                .generation = name.generation,
                .access = static_cast<uint8_t>(access),
                .base = reinterpret_cast<uint64_t>(memory.address),
                .length = memory.length,
                .part = parts.length,
                .rkeys = {}};
  // Without a key nothing can be reached, whatever else a peer knows.
  for (const ibv_mr* region : *registered) {
    key.rkeys.push_back(access == Access::kLocal || region == nullptr ? 0 : region->rkey);
  }
  commands_.Put(LocalRegion{OwnRegion::Registered(name, memory, access), parts, std::move(*registered),
                            std::move(prepared.health), std::move(prepared.buffer.fd)},
                lock);
  return Encode(key);
}

Result<RemoteRegion> Registry::Import(LinkId link, const RegionName& name, uint64_t length,
                                      std::string_view key) {
  WC_ASSIGN_OR_RETURN(RegionKey parsed, ParseRegionKey(key));
  WC_RETURN_IF_ERROR(CheckPeers(name));
  if (parsed.id != name.id || parsed.generation != name.generation) {
    return Error(Code::kPermission, "the peer's key is of region ", parsed.id, ", generation ",
                 parsed.generation, ", and not of region ", name.id, ", generation ", name.generation,
                 kSameRelease);
  }
  if (length > parsed.length)
    return Error(Code::kOutOfBounds, "the peer's region has ", parsed.length,
                 " bytes, and its description says ", length, kSameRelease);
  if (parsed.access > static_cast<uint8_t>(Access::kRead)) {
    return OtherRelease("the peer's region has an access that is not known here");
  }
  return Add(link, name,
             {.id = name.id,
              .generation = name.generation,
              .access = static_cast<Access>(parsed.access),
              .base = parsed.base,
              .length = length,
              .parts = *CutInto(parsed.part, parsed.length),
              .rkeys = std::move(parsed.rkeys)});
}

RegionOut Registry::DeregisterEverywhere(uint32_t id, const Parts& parts,
                                         const std::vector<ibv_mr*>& registered) const {
  RegionOut out{.id = id, .kept = {}};
  for (size_t i = 0; i < registered.size(); ++i) {
    const size_t nic = i / parts.count;
    const Status deregistered = nics_[nic]->domain().DeregisterMemory(registered[i]);
    if (!deregistered.ok()) out.kept.push_back({.nic = nic, .why = deregistered.message()});
  }
  return out;
}

std::optional<RegionOut> Registry::TakeOut(LocalRegion& region) {
  const auto registered = std::exchange(region.registered, {});
  if (region.length <= kSoon && region.health == nullptr)
    return DeregisterEverywhere(region.id, region.parts, registered);
  const auto buffer = std::make_shared<UniqueFd>(std::move(region.buffer));
  deregistering_.Run([this, id = region.id, parts = region.parts, registered, buffer] {
    RegionOut out = DeregisterEverywhere(id, parts, registered);
    buffer->reset();
    const std::lock_guard lock(commands_.mutex());
    commands_.Put(std::move(out), lock);
  });
  return std::nullopt;
}

}  // namespace weightcast::transport::verbs
