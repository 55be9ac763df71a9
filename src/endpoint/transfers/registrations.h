#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "endpoint/transfers/descriptor.h"
#include "endpoint/transfers/flag.h"
#include "endpoint/transfers/use_table.h"
#include "memory/registration_cache.h"
#include "transport/transport.h"
#include "weightcast/endpoint.h"

namespace weightcast::endpoint {

/// Memory registered with all transports, under one name.
struct RegisteredMemory {
  RegionName name;
  uint64_t serial = 0;  ///< As slices of it bear.
  DescribedMemory memory;
  Access access = Access::kLocal;
  std::vector<RegionKey> keys;  ///< One of each transport that has taken it.
  struct LeftOut {
    std::string transport;
    std::string reason;
  };
  std::vector<LeftOut> left_out;         ///< Device memory: the transports that have not.
  std::shared_ptr<SharedBuffer> buffer;  ///< Kept until no peer can touch it. Guarded by Registrations.
  std::atomic<bool> published{false};    ///< Found by its id.
  std::atomic<bool> closing{false};      ///< Nobody may begin to use it.
  bool close_asked = false;              ///< Holder of progress.
  uint32_t deregistrations = 0;          ///< Transports that have not yet let go.
  Flag closed;                           ///< 1: no peer reads or writes it any more.
};

/// The registrations of an endpoint.
class Registrations {
 public:
  using Transports = std::vector<std::pair<std::string, transport::Transport*>>;

  /// `submit` runs a function under progress; `cancel` ends all transfers that use a registration.
  struct Hooks {
    std::function<void(std::function<void()>)> submit;
    std::function<void(const RegisteredMemory&)> cancel;
    std::function<Result<DescribedMemory>(const Memory&)> describe;  ///< Device memory.
  };
  Registrations(Incarnation self, Hooks hooks);

  /// Before anything else, and {} when the transports go: from then on closing ends at once.
  void SetTransports(Transports transports);

  // Any thread.
  using Handle = RegistrationCache<std::shared_ptr<RegisteredMemory>>::Handle;
  /// Device memory: with those transports that move it, at least one. Connections that are made while another
  /// has not taken it do without that one.
  Result<Handle> Acquire(const Memory& memory, Access access);
  /// The live registration of this id, which stays until Done; null if there is none. No lock.
  RegisteredMemory* Use(uint32_t id);
  /// Ends one Use.
  void Done(RegisteredMemory& registration);
  /// As transports take it; kInvalidArgument and kOutOfBounds for ranges that are none, or take no writes.
  Result<transport::GrantReach> ReachOf(std::span<const GrantRange> ranges);
  /// Lets go of a closed registration's buffer, which may take long when it is the last to hold it.
  void FreeBuffer(RegisteredMemory& registration);

  // Holder of progress.
  /// One transport has let go.
  void OnDeregistered(uint32_t id);
  /// Why this transport could not take some device memory that is registered now. Empty: it has taken all.
  [[nodiscard]] std::string WhyLeftOut(std::string_view transport) const;
  /// Closes all, whoever holds them.
  void CloseAll();
  /// How many are not closed yet.
  [[nodiscard]] size_t open() const;

 private:
  /// The whole of the live registration that a slice names, if it takes writes.
  Result<transport::WriteRanges::Range> Granted(const LocalSlice& slice);
  Result<Handle> AcquireDevice(const Memory& memory, Access access);
  Result<std::shared_ptr<RegisteredMemory>> Make(const DescribedMemory& memory, Access access);
  Status RegisterWithAll(RegisteredMemory& registration);
  void TellLeftOut(const RegisteredMemory& registration);
  std::shared_ptr<RegisteredMemory> NewName();
  void Publish(RegisteredMemory& registration);
  void Retire(std::shared_ptr<RegisteredMemory> registration);
  void AskClose(RegisteredMemory& registration);
  void OnUnused(uint32_t id);
  void Deregister(RegisteredMemory& registration);
  void Finish(RegisteredMemory& registration);

  const Incarnation self_;
  const Hooks hooks_;
  UseTable<RegisteredMemory> table_;  ///< By id; the transfers that are not fenced are the uses.
  mutable std::mutex mutex_;  ///< Guards the six below, table_'s changes and the registrations' buffers.
  Transports transports_;
  std::vector<std::shared_ptr<RegisteredMemory>> by_id_;  ///< Null: free. [0] is never used.
  std::vector<uint32_t> free_ids_;
  uint32_t last_generation_ = 0;
  std::set<std::string> told_;                              ///< Transports that a warning has named.
  std::vector<std::shared_ptr<RegisteredMemory>> orphans_;  ///< Not closed when the transports went.
  RegistrationCache<std::shared_ptr<RegisteredMemory>> cache_;
};

}  // namespace weightcast::endpoint
