#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "device/gpus.h"
#include "device/handles.h"
#include "device/worker.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// A peer's allocation at an address of this process, for one device of ours. Any thread may hold it and let
/// it go; its last holder leaves the unmapping to the worker, where a task of RunAfterCopies that comes after
/// it finds it unmapped.
struct Mapping {
  std::byte* address = nullptr;
  size_t length = 0;
};

/// The mappings that one device has of others' memory: one of each allocation, however many ask for it.
///
/// Threads: all of it on the worker's thread.
class Mappings : public std::enable_shared_from_this<Mappings> {
 public:
  Mappings(std::shared_ptr<const Gpus> gpus, std::shared_ptr<Health> health);
  ~Mappings();
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  /// What is mapped already; nullptr otherwise.
  std::shared_ptr<const Mapping> Find(const std::shared_ptr<Worker>& worker, const AllocationName& name);
  /// Memory of this process itself, which needs no handle: its own address, made reachable for this device.
  /// kInvalidArgument where that memory is not what `name` says.
  Result<std::shared_ptr<const Mapping>> MapOwn(const std::shared_ptr<Worker>& worker,
                                                const AllocationName& name);

  /// A mapping that grows with the messages that bring its handles. Given up when destroyed unfinished.
  class Import;
  /// kProtocol where `name` cannot be right, kUnavailable where it is not exportable.
  Result<std::unique_ptr<Import>> Begin(const std::shared_ptr<Worker>& worker, const AllocationName& name);

  /// Allocations that are mapped, for tests and a person.
  [[nodiscard]] size_t size() const { return records_.size(); }

 private:
  using Key = std::pair<uint64_t, uint64_t>;  ///< The owner's process and the identity there.
  class Range;
  struct Record {
    std::unique_ptr<Range> range;
    std::weak_ptr<const Mapping> handle;
  };
  std::shared_ptr<const Mapping> HandleOf(const std::shared_ptr<Worker>& worker, const Key& key,
                                          Record& record);
  void Release(const Key& key);
  Status Reach(const AllocationName& name);

  const std::shared_ptr<const Gpus> gpus_;
  const std::shared_ptr<Health> health_;
  std::map<Key, Record> records_;
};

class Mappings::Import {
 public:
  Import(std::shared_ptr<Mappings> mappings, std::shared_ptr<Worker> worker, AllocationName name);
  Import(const Import&) = delete;
  Import& operator=(const Import&) = delete;
  ~Import();

  /// The handles of the next blocks, in order. Descriptors are closed here. Errors are the driver's.
  Status Add(std::vector<Handle> handles);
  /// How many blocks have no handle yet.
  [[nodiscard]] size_t missing() const;
  /// When none is missing: the mapping, or the one that another import has finished meanwhile.
  Result<std::shared_ptr<const Mapping>> Finish();

 private:
  friend class Mappings;
  const std::shared_ptr<Mappings> mappings_;
  const std::shared_ptr<Worker> worker_;
  const AllocationName name_;
  std::unique_ptr<Range> range_;
};

}  // namespace weightcast::device
