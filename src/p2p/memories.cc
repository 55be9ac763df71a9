#include "p2p/memories.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace weightcast::p2p {

Result<MemoryPtr> Memories::New(std::span<std::byte> bytes, bool temporary) {
  WC_ASSIGN_OR_RETURN(const weightcast::Memory what, s_.user_memory.Recognise(bytes));
  WC_ASSIGN_OR_RETURN(Region region, s_.endpoint->Register(what, Access::kReadWrite));
  auto memory = std::make_shared<Memory>();
  memory->address = bytes.data();
  memory->length = bytes.size();
  memory->device = what.device;
  memory->region = std::make_shared<Region>(std::move(region));
  memory->temporary = temporary;
  const std::lock_guard lock(s_.mutex);
  memory->id = ++last_;
  s_.memories[memory->id] = memory;
  return memory;
}

void Memories::Drop(const Memory& memory) {
  for (const auto& [incarnation, peer] : s_.peers)
    if (peer->told.erase(memory.id) != 0) s_.Send(*peer, Forget{.memory = memory.id});
  s_.memories.erase(memory.id);
}

Result<OwnSlice> Memories::Resolve(const LocalSlice& local, bool up_to_end) {
  if (local.memory == 0) {
    WC_ASSIGN_OR_RETURN(auto memory, New({local.address, local.length}, /*temporary=*/true));
    return OwnSlice{.memory = std::move(memory), .offset = 0, .length = local.length};
  }
  const std::lock_guard lock(s_.mutex);
  const auto found = s_.memories.find(local.memory);
  if (found == s_.memories.end())
    return Error(Code::kInvalidArgument, "no memory is registered as ", local.memory, "; register it first");
  const Memory& memory = *found->second;
  const auto from = reinterpret_cast<uintptr_t>(memory.address);
  const auto at = reinterpret_cast<uintptr_t>(local.address);
  const bool begins_inside = at >= from && at - from < memory.length;
  const uint64_t room = begins_inside ? memory.length - (at - from) : 0;
  if (room == 0 || (local.length > room && !up_to_end)) {
    return Error(Code::kOutOfBounds, local.length, " bytes at address ", at, " do not lie in memory ",
                 local.memory, ", which has ", memory.length, " bytes from ", from,
                 " on; register all of them");
  }
  return OwnSlice{.memory = found->second, .offset = at - from, .length = std::min(local.length, room)};
}

Result<uint64_t> Memories::IdentityOf(const Memory& memory) {
  if (memory.device < 0) return uint64_t{0};
  return s_.user_memory.IdentityOf({.kind = MemoryKind::kDevice,
                                    .device = memory.device,
                                    .address = memory.address,
                                    .length = memory.length});
}

Status Memories::StillRegistered(const Operation& operation) const {
  for (const OwnSlice& part : operation.parts) {
    if (part.memory != nullptr && !s_.memories.contains(part.memory->id))
      return Error(Code::kInvalidArgument, "memory ", part.memory->id,
                   " was deregistered meanwhile; register it again");
  }
  return Status::Ok();
}

void Memories::TellOf(Peer& peer, const Memory& memory) {
  if (!peer.told.insert(memory.id).second) return;
  s_.Send(peer, Describe{.memory = memory.id, .reason = {}, .descriptor = memory.region->Descriptor()});
}

}  // namespace weightcast::p2p
