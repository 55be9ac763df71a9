#include "endpoint/transfers/registrations.h"

#include <algorithm>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "endpoint/transfers/slices.h"
#include "memory/populate.h"

namespace weightcast::endpoint {

Registrations::Registrations(Incarnation self, Hooks hooks)
    : self_(self), hooks_(std::move(hooks)), by_id_(1), cache_([this](auto&& entry) {
        auto registration = entry.data;
        {
          const std::lock_guard lock(mutex_);
          registration->buffer = std::move(entry.buffer);
        }
        Retire(std::move(registration));
      }) {}

void Registrations::SetTransports(Transports transports) {
  std::vector<std::shared_ptr<SharedBuffer>> buffers;  // Outlive the lock.
  const std::lock_guard lock(mutex_);
  transports_ = std::move(transports);
  if (!transports_.empty()) return;
  for (auto& registration : by_id_) {
    if (registration == nullptr) continue;
    registration->closing.store(true);
    registration->closed.Set(1);
    // Whoever still has a region in it lets go of its memory later; otherwise nobody would.
    if (registration.use_count() == 1) buffers.push_back(std::move(registration->buffer));
    orphans_.push_back(std::move(registration));  // Transfers that are not fenced may name it still.
  }
  by_id_.resize(1);
  free_ids_.clear();
}

Result<Registrations::Handle> Registrations::AcquireDevice(const Memory& memory, Access access) {
  if (memory.length == 0) return Status(Code::kInvalidArgument, "cannot register 0 bytes; give at least one");
  WC_ASSIGN_OR_RETURN(const DescribedMemory described, hooks_.describe(memory));
  return cache_.AcquireDevice(described, access,
                              [this](const DescribedMemory& given, Access how) { return Make(given, how); });
}

Result<Registrations::Handle> Registrations::Acquire(const Memory& memory, Access access) {
  if (memory.kind == MemoryKind::kDevice) return AcquireDevice(memory, access);
  const std::span bytes(memory.address, memory.length);
  if (Handle found = bytes.empty() ? nullptr : cache_.Find(bytes, access); found != nullptr) return found;
  if (!bytes.empty()) {
    // The transports would do it too, but under the cache's lock: who closes a region meanwhile would wait.
    const auto shared = FindShared(bytes);
    const DescribedMemory whole = DescribeHostMemory(bytes, shared);
    if (Status status = Populate({whole.address, whole.length}, access); !status.ok()) {
      return Error(status.code(), "cannot register ", HumanBytes(double(whole.length)), ": ",
                   status.message());
    }
  }
  return cache_.Acquire(bytes, access,
                        [this](const DescribedMemory& given, Access how) { return Make(given, how); });
}

std::shared_ptr<RegisteredMemory> Registrations::NewName() {
  const std::lock_guard lock(mutex_);
  if (transports_.empty()) return nullptr;
  uint32_t id = 0;
  if (free_ids_.empty()) {
    id = static_cast<uint32_t>(by_id_.size());
    by_id_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  if (++last_generation_ == 0) ++last_generation_;
  auto registration = std::make_shared<RegisteredMemory>();
  registration->name = {self_, id, last_generation_};
  registration->serial = SliceAccess::NewSerial();
  by_id_[id] = registration;
  return registration;
}

Result<std::shared_ptr<RegisteredMemory>> Registrations::Make(const DescribedMemory& memory, Access access) {
  auto registration = NewName();
  if (registration == nullptr) return ClosedHere("the endpoint");
  registration->memory = memory;
  registration->access = access;
  const Status status = RegisterWithAll(*registration);
  Publish(*registration);
  if (!status.ok()) {
    Retire(registration);
    return Error(status.code(), "cannot register ", HumanBytes(double(memory.length)), status.message());
  }
  if (registration->closing.load()) {
    Retire(registration);
    return ClosedHere("the endpoint");
  }
  return registration;
}

/// A transport that cannot take device memory is left out: connections over it refuse the region, and new
/// ones are made over another.
Status Registrations::RegisterWithAll(RegisteredMemory& registration) {
  const DescribedMemory& memory = registration.memory;
  const bool device = memory.kind == MemoryKind::kDevice;
  for (const auto& [name, transport] : transports_) {
    auto key = transport->Register(registration.name, memory, registration.access);
    if (!key.ok() && device && key.status().code() == Code::kUnavailable) {
      registration.left_out.push_back({name, key.status().message()});
      continue;
    }
    if (!key.ok()) return Error(key.status().code(), " with ", name, ": ", key.status().message());
    ++registration.deregistrations;
    registration.keys.push_back({name, std::move(key).value()});
  }
  if (!registration.keys.empty()) {
    TellLeftOut(registration);
    return Status::Ok();
  }
  std::string reasons;
  for (const auto& [name, reason] : registration.left_out)
    reasons += StrCat(reasons.empty() ? "" : "; ", name, ": ", reason);
  return Error(Code::kUnavailable, " of device ", memory.ordinal, ": no transport takes it (", reasons,
               "); correct one of these, or allow another in setting transport");
}

/// Once for each transport.
void Registrations::TellLeftOut(const RegisteredMemory& registration) {
  for (const auto& [name, reason] : registration.left_out) {
    {
      const std::lock_guard lock(mutex_);
      if (!told_.insert(name).second) continue;
    }
    WC_LOG(kWarning, "connections that are made from now on do without ", name, ": memory of device ",
           registration.memory.ordinal, " is not registered there: ", reason);
  }
}

std::string Registrations::WhyLeftOut(std::string_view transport) const {
  const std::lock_guard lock(mutex_);
  for (const auto& registration : by_id_) {
    if (registration == nullptr || !registration->published.load() || registration->closing.load()) continue;
    for (const auto& [name, reason] : registration->left_out) {
      if (name == transport)
        return StrCat("memory of device ", registration->memory.ordinal,
                      " is not registered there: ", reason);
    }
  }
  return {};
}

void Registrations::Publish(RegisteredMemory& registration) {
  const std::lock_guard lock(mutex_);
  table_.Set(registration.name.id, &registration);
  registration.published.store(true);
}

RegisteredMemory* Registrations::Use(uint32_t id) {
  const auto found = table_.Use(id);
  if (found.became_unused) OnUnused(id);
  if (found.thing == nullptr || !found.thing->closing.load()) return found.thing;
  Done(*found.thing);
  return nullptr;
}

void Registrations::Done(RegisteredMemory& registration) {
  const uint32_t id = registration.name.id;  // Gone as soon as it is unused.
  if (table_.Drop(id)) OnUnused(id);
}

Result<transport::WriteRanges::Range> Registrations::Granted(const LocalSlice& slice) {
  const uint64_t serial = SliceAccess::SerialOf(slice);
  RegisteredMemory* const found = serial == 0 ? nullptr : Use(SliceAccess::IndexOf(slice));
  constexpr auto* kClosed =
      "its region is closed, or of another endpoint; register that memory with this connection's endpoint";
  if (found == nullptr) return Status(Code::kInvalidArgument, kClosed);
  const bool same = found->serial == serial;
  const bool writes = PeersWrite(found->access, /*granted=*/true);
  const transport::WriteRanges::Range granted{
      .region = found->name.id, .generation = found->name.generation, .length = found->memory.length};
  Done(*found);
  if (same && writes) return granted;
  return Status(Code::kInvalidArgument,
                same ? "its region takes no writes; register that memory with access granted" : kClosed);
}

Result<transport::GrantReach> Registrations::ReachOf(std::span<const GrantRange> ranges) {
  std::vector<transport::WriteRanges::Range> all;
  all.reserve(ranges.size());
  for (const GrantRange& range : ranges) {
    const uint64_t length = range.first.length();
    const auto wrong = [&](const Status& why) {
      return Error(why.code(), "range ", all.size(), " of the grant: ", why.message());
    };
    const auto whole = Granted(range.first);
    if (!whole.ok()) return wrong(whole.status());
    const uint64_t offset = SliceAccess::OffsetOf(range.first);
    const bool apart = range.count == 1 || (range.count > 1 && range.stride >= length && range.stride > 0);
    const uint64_t room = whole->length - offset - length;  // The slice lies inside.
    if (!apart || (range.count > 1 && (range.count - 1) > room / range.stride)) {
      return wrong(Error(Code::kOutOfBounds, "it has ", range.count, " blocks of ", length,
                         " bytes, one every ", range.stride, " bytes, from byte ", offset,
                         " of a registration of ", whole->length,
                         " bytes on; give at least one, all inside the registration and without overlap"));
    }
    all.push_back({.region = whole->region,
                   .generation = whole->generation,
                   .offset = offset,
                   .length = length,
                   .stride = range.stride,
                   .count = range.count});
  }
  return std::make_shared<const transport::WriteRanges>(std::move(all));
}

/// Nothing of ours touches a registration that is closing any more: the transports' turn.
void Registrations::OnUnused(uint32_t id) {
  hooks_.submit([this, id] {
    std::shared_ptr<RegisteredMemory> registration;
    {
      const std::lock_guard lock(mutex_);
      if (id < by_id_.size()) registration = by_id_[id];
    }
    if (registration != nullptr) Deregister(*registration);
  });
}

void Registrations::FreeBuffer(RegisteredMemory& registration) {
  std::shared_ptr<SharedBuffer> buffer;  // Outlives the lock.
  const std::lock_guard lock(mutex_);
  buffer = std::move(registration.buffer);
}

void Registrations::Retire(std::shared_ptr<RegisteredMemory> registration) {
  {
    const std::lock_guard lock(mutex_);
    registration->closing.store(true);
    if (transports_.empty()) registration->closed.Set(1);
  }
  hooks_.submit([this, registration = std::move(registration)] { AskClose(*registration); });
}

void Registrations::AskClose(RegisteredMemory& registration) {
  if (std::exchange(registration.close_asked, true)) return;
  hooks_.cancel(registration);
  bool unused = false;
  {
    const std::lock_guard lock(mutex_);
    unused = table_.Remove(registration.name.id);
  }
  if (unused) Deregister(registration);
}

void Registrations::CloseAll() {
  std::vector<std::shared_ptr<RegisteredMemory>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& registration : by_id_) {
      if (registration == nullptr) continue;
      registration->closing.store(true);
      all.push_back(registration);
    }
  }
  for (const auto& registration : all) {
    if (registration->published.load()) AskClose(*registration);  // Else the thread that makes it does so.
  }
}

void Registrations::Deregister(RegisteredMemory& registration) {
  if (registration.deregistrations == 0) return Finish(registration);
  Transports transports;
  {
    const std::lock_guard lock(mutex_);
    transports = transports_;
  }
  for (const auto& [name, transport] : transports) {
    const bool took =
        std::ranges::any_of(registration.keys, [&](const RegionKey& key) { return key.transport == name; });
    if (took) transport->Deregister(registration.name.id);
  }
}

void Registrations::OnDeregistered(uint32_t id) {
  std::shared_ptr<RegisteredMemory> registration;
  {
    const std::lock_guard lock(mutex_);
    if (id < by_id_.size()) registration = by_id_[id];
  }
  if (registration == nullptr || registration->deregistrations == 0) return;
  if (--registration->deregistrations == 0) Finish(*registration);
}

/// Its buffer goes with who waits for this, or with its last handle: giving gigabytes back takes longer than
/// progress may be held.
void Registrations::Finish(RegisteredMemory& registration) {
  std::shared_ptr<RegisteredMemory> finished;  // Outlives the lock.
  const std::lock_guard lock(mutex_);
  const uint32_t id = registration.name.id;
  if (id < by_id_.size() && by_id_[id].get() == &registration) {
    finished = std::move(by_id_[id]);
    free_ids_.push_back(id);
  }
  registration.closed.Set(1);
}

size_t Registrations::open() const {
  const std::lock_guard lock(mutex_);
  return by_id_.size() - static_cast<size_t>(std::ranges::count(by_id_, nullptr));
}

}  // namespace weightcast::endpoint
