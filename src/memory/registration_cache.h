#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "memory/memory.h"
#include "memory/shared.h"
#include "weightcast/memory.h"
#include "weightcast/status.h"

namespace weightcast {

/// Describes host memory to a transport: bytes of an Allocate'd buffer become the whole buffer with its
/// descriptor; other memory is exactly what was given, with an identity of its own.
DescribedMemory DescribeHostMemory(std::span<std::byte> bytes, const std::optional<SharedRange>& shared);

/// Registrations of one owner, each made once and shared by all who ask for bytes inside it with the same
/// access. An entry exists only as long as someone holds it: memory that was freed and allocated again at
/// the same address is never found, because its former holders were bound to let go first. Memory
/// from Allocate is registered whole and kept alive by its entry.
///
/// `Data` is what the owner attaches: ids, keys. Thread safe; handles may outlive the cache.
template <typename Data>
class RegistrationCache {
 public:
  struct Entry {
    DescribedMemory memory;
    Access access = Access::kLocal;
    Data data;
    std::shared_ptr<SharedBuffer> buffer;  ///< Set for memory from Allocate.
    /// Where `address`, which lies inside, stands from the entry's first byte.
    [[nodiscard]] uint64_t OffsetOf(const std::byte* address) const {
      return static_cast<uint64_t>(address - memory.address);
    }
  };
  using Handle = std::shared_ptr<const Entry>;
  /// Registers; called under the cache's lock, so that one allocation is registered once however many
  /// threads ask. Must not touch the cache or drop its handles.
  using Make = std::function<Result<Data>(const DescribedMemory&, Access)>;
  /// Ends a registration: called once, when its last handle goes, by that handle's thread, without the lock.
  using Drop = std::function<void(Entry&&)>;

  explicit RegistrationCache(Drop drop) : shared_(std::make_shared<Shared>(std::move(drop))) {}

  /// The live registration with `access` around `bytes` (> 0), or a new one. Errors are those of `make`.
  Result<Handle> Acquire(std::span<std::byte> bytes, Access access, const Make& make) {
    if (bytes.empty()) return Status(Code::kInvalidArgument, "cannot register 0 bytes; give at least one");
    const std::lock_guard lock(shared_->mutex);
    if (Handle found = shared_->Find(bytes, access); found != nullptr) return found;
    auto shared_range = FindShared(bytes);
    Entry entry{.memory = DescribeHostMemory(bytes, shared_range), .access = access, .data{}, .buffer{}};
    if (shared_range) entry.buffer = std::move(shared_range->buffer);
    return shared_->InsertMade(std::move(entry), make);
  }

  /// The same for device memory, as the driver describes it: exactly its bytes. Memory that was freed and
  /// allocated again has another identity, so a registration of before is not found.
  Result<Handle> AcquireDevice(const DescribedMemory& memory, Access access, const Make& make) {
    const std::lock_guard lock(shared_->mutex);
    Handle found = shared_->Find({memory.address, memory.length}, access);
    if (found != nullptr && found->memory.allocation.identity == memory.allocation.identity) return found;
    return shared_->InsertMade({.memory = memory, .access = access, .data{}, .buffer{}}, make);
  }

  /// The live registration with `access` around `bytes` (> 0), if there is one.
  [[nodiscard]] Handle Find(std::span<std::byte> bytes, Access access) const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->Find(bytes, access);
  }

  /// Live registrations that can be found, for tests and for a person.
  [[nodiscard]] size_t size() const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->by_base.size();
  }

 private:
  using Key = std::pair<Access, const std::byte*>;

  struct Shared : std::enable_shared_from_this<Shared> {
    explicit Shared(Drop on_drop) : drop(std::move(on_drop)) {}

    /// No entry here lies inside another, so ends grow with bases: of all entries that begin at or
    /// before `bytes`, the last reaches furthest, and it alone has to be looked at.
    Handle Find(std::span<std::byte> bytes, Access access) const {
      auto after = by_base.upper_bound(Key{access, bytes.data()});
      if (after == by_base.begin()) return nullptr;
      const auto& [key, slot] = *std::prev(after);
      if (key.first != access || bytes.data() + bytes.size() > slot.end) return nullptr;
      return slot.entry.lock();  // nullptr when its last handle is going away just now.
    }

    Result<Handle> InsertMade(Entry&& entry, const Make& make) {
      auto data = make(entry.memory, entry.access);
      if (!data.ok()) return data.status();
      entry.data = std::move(data).value();
      return Insert(std::move(entry));
    }

    Handle Insert(Entry&& entry) {
      const Key key{entry.access, entry.memory.address};
      const std::byte* const end = entry.memory.address + entry.memory.length;
      // Smaller ones inside live on for their holders but need not be found any more.
      auto inside = by_base.lower_bound(key);
      while (inside != by_base.end() && inside->first.first == key.first && inside->second.end <= end) {
        inside = by_base.erase(inside);
      }
      const uint64_t serial = ++last_serial;
      auto owned = std::make_unique<Entry>(std::move(entry));
      Handle handle(owned.get(), [self = this->shared_from_this(), key, serial](const Entry* gone) {
        self->Forget(key, serial);
        std::unique_ptr<Entry> taken(const_cast<Entry*>(gone));
        self->drop(std::move(*taken));
      });
      owned.release();
      by_base[key] = {end, serial, handle};
      return handle;
    }

    void Forget(const Key& key, uint64_t serial) {
      const std::lock_guard lock(mutex);
      const auto found = by_base.find(key);
      if (found != by_base.end() && found->second.serial == serial) by_base.erase(found);
    }

    struct Slot {
      const std::byte* end = nullptr;
      uint64_t serial = 0;
      std::weak_ptr<const Entry> entry;
    };
    std::mutex mutex;
    std::map<Key, Slot> by_base;
    uint64_t last_serial = 0;
    Drop drop;
  };

  std::shared_ptr<Shared> shared_;
};

}  // namespace weightcast
