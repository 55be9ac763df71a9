#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "endpoint/transfers/use_table.h"
#include "transport/types.h"
#include "weightcast/region.h"

namespace weightcast::endpoint {

/// A peer's region, usable over one link.
struct RemoteImport {
  uint64_t serial = 0;  ///< As slices of it bear.
  transport::RemoteRegion handle{};
  uint64_t offset = 0;  ///< Of the region in the peer's registration.
  uint64_t length = 0;
  Access access = Access::kLocal;
  MemoryKind kind = MemoryKind::kHost;
};

/// The regions imported on one connection, by the index in their slices. Any thread. A transport forgets a
/// region when it is removed and no transfer uses it any more.
class Imports {
 public:
  /// `release` gives a region back to the transport; called from any thread, and for what is left at the end.
  explicit Imports(std::function<void(transport::RemoteRegion)> release) : release_(std::move(release)) {}
  Imports(const Imports&) = delete;
  Imports& operator=(const Imports&) = delete;
  ~Imports();

  RemoteRegion Add(RemoteImport import);
  /// Nothing if it was removed before.
  void Remove(const RemoteRegion& region);
  /// It stays until Done; null if there is none. No lock.
  const RemoteImport* Use(uint32_t index);
  /// Ends one Use.
  void Done(uint32_t index);

 private:
  struct Entry {
    RemoteImport import;
    bool removed = false;
  };
  void OnUnused(uint32_t index);

  const std::function<void(transport::RemoteRegion)> release_;
  UseTable<const RemoteImport> table_;
  std::mutex mutex_;  ///< Guards the two below and table_'s changes.
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<uint32_t> free_;
};

}  // namespace weightcast::endpoint
