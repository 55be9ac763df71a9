#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "p2p/engine.h"

// Memory: registered, named to peers, let go of.
namespace weightcast::p2p {

Result<std::shared_ptr<Memory>> Engine::NewMemory(std::span<std::byte> bytes, bool temporary) {
  WC_ASSIGN_OR_RETURN(const weightcast::Memory what, user_memory_.Recognise(bytes));
  WC_ASSIGN_OR_RETURN(Region region, endpoint_->Register(what, Access::kReadWrite));
  auto memory = std::make_shared<Memory>();
  memory->address = bytes.data();
  memory->length = bytes.size();
  memory->device = what.device;
  memory->region = std::make_shared<Region>(std::move(region));
  memory->temporary = temporary;
  const std::lock_guard lock(mutex_);
  memory->id = ++last_memory_;
  memories_[memory->id] = memory;
  return memory;
}

Result<uint64_t> Engine::Register(std::span<std::byte> bytes) {
  WC_ASSIGN_OR_RETURN(const auto memory, NewMemory(bytes, /*temporary=*/false));
  return memory->id;
}

Status Engine::Deregister(uint64_t id) {
  std::shared_ptr<Memory> memory;
  {
    const std::lock_guard lock(mutex_);
    const auto found = memories_.find(id);
    if (found == memories_.end())
      return {Code::kInvalidArgument, StrCat("no memory is registered as ", id, "; register it first")};
    memory = found->second;
    ForgetMemory(*memory);
    const Status reason(Code::kCancelled,
                        StrCat("this process deregistered memory ", id, "; register it again to go on"));
    const auto all = operations_;
    for (const auto& [number, operation] : all) {
      const auto& parts = operation->parts;
      if (std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return part.memory == memory; }))
        Cancel(operation, reason);
    }
  }
  const Status closed = memory->region->Close(Clock::now() + options_.settings.lease);
  if (closed.ok()) return closed;
  const std::lock_guard lock(mutex_);
  memories_[id] = memory;  // To be tried again.
  return closed;
}

void Engine::ForgetMemory(const Memory& memory) {
  for (const auto& [incarnation, peer] : peers_)
    if (peer->told.erase(memory.id) != 0) Tell(*peer, Forget{.memory = memory.id});
  memories_.erase(memory.id);
}

/// `up_to_end`: a length beyond the end of the memory means up to its end.
Result<Part> Engine::Resolve(const Local& local, bool up_to_end) {
  if (local.memory == 0) {
    WC_ASSIGN_OR_RETURN(auto memory, NewMemory({local.address, local.length}, /*temporary=*/true));
    return Part{.memory = std::move(memory), .offset = 0, .length = local.length};
  }
  const std::lock_guard lock(mutex_);
  const auto found = memories_.find(local.memory);
  if (found == memories_.end())
    return Status(Code::kInvalidArgument,
                  StrCat("no memory is registered as ", local.memory, "; register it first"));
  const Memory& memory = *found->second;
  const auto from = reinterpret_cast<uintptr_t>(memory.address);
  const auto at = reinterpret_cast<uintptr_t>(local.address);
  const bool begins_inside = at >= from && at - from < memory.length;
  const uint64_t room = begins_inside ? memory.length - (at - from) : 0;
  if (room == 0 || (local.length > room && !up_to_end)) {
    return Status(Code::kOutOfBounds,
                  StrCat(local.length, " bytes at address ", at, " do not lie in memory ", local.memory,
                         ", which has ", memory.length, " bytes from ", from, " on; register all of them"));
  }
  return Part{.memory = found->second, .offset = at - from, .length = std::min(local.length, room)};
}

Result<uint64_t> Engine::IdentityOf(const Memory& memory) {
  if (memory.device < 0) return uint64_t{0};
  return user_memory_.IdentityOf({.kind = MemoryKind::kDevice,
                                  .device = memory.device,
                                  .address = memory.address,
                                  .length = memory.length});
}

Result<Part> Engine::ResolveToAdvertise(const Local& bytes) {
  std::shared_ptr<Memory> known;
  if (bytes.memory == 0) {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, memory] : memories_) {
      if (memory->advertised && memory->address == bytes.address && memory->length == bytes.length)
        known = memory;
    }
  }
  if (known == nullptr) return Resolve(bytes, /*up_to_end=*/false);
  const auto identity = IdentityOf(*known);
  if (identity.ok() && *identity == known->identity)
    return Part{.memory = known, .offset = 0, .length = bytes.length};
  // It was freed, and this is other memory at the same address.
  (void)Deregister(known->id);
  return Resolve(bytes, /*up_to_end=*/false);
}

Result<Advert> Engine::Advertise(const Local& bytes) {
  WC_ASSIGN_OR_RETURN(const Part part, ResolveToAdvertise(bytes));
  uint64_t identity = 0;
  if (bytes.memory == 0) {
    WC_ASSIGN_OR_RETURN(identity, IdentityOf(*part.memory));
  }
  const std::lock_guard lock(mutex_);
  if (part.memory->temporary) {  // Whoever has the advert may come at any time.
    part.memory->temporary = false;
    part.memory->advertised = true;
    part.memory->identity = identity;
  }
  return Advert{.owner = endpoint_->self().incarnation,
                .memory = part.memory->id,
                .offset = part.offset,
                .length = part.length,
                .address = reinterpret_cast<uintptr_t>(bytes.address)};
}

Status Engine::StillRegistered(const Operation& operation) const {
  for (const Part& part : operation.parts) {
    if (part.memory != nullptr && !memories_.contains(part.memory->id))
      return {Code::kInvalidArgument,
              StrCat("no memory is registered as ", part.memory->id, "; register it first")};
  }
  return Status::Ok();
}

/// What was registered for this call alone is no longer told of. Its closing may wait, and this may be the
/// progress thread: whoever hears of the operation's end does it.
void Engine::Retire(Operation& operation) {
  awaiting_.erase(operation.waits_as);
  for (Part& part : operation.parts) {
    if (part.memory == nullptr || !part.memory->temporary) continue;
    ForgetMemory(*part.memory);
    operation.retired.push_back(std::move(part.memory->region));
  }
}

}  // namespace weightcast::p2p
