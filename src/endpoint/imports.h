#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "memory/memory.h"
#include "transport/types.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

/// A peer's region, usable over one link. The transport forgets it when the last holder lets go: the
/// table below and the transfers that use it.
class RemoteImport {
 public:
  /// `release` gives the region back to the transport; any thread.
  RemoteImport(transport::RemoteRegion region, std::function<void(transport::RemoteRegion)> release)
      : handle(region), release_(std::move(release)) {}
  RemoteImport(const RemoteImport&) = delete;
  RemoteImport& operator=(const RemoteImport&) = delete;
  ~RemoteImport() { release_(handle); }

  const transport::RemoteRegion handle;
  uint64_t offset = 0;  ///< Of the region in the peer's registration.
  uint64_t length = 0;
  Access access = Access::kLocal;

 private:
  std::function<void(transport::RemoteRegion)> release_;
};

/// The regions imported on one connection, by the index that callers use. Any thread.
class Imports {
 public:
  uint32_t Add(std::shared_ptr<RemoteImport> import);
  void Remove(uint32_t index);
  /// Null if there is none.
  std::shared_ptr<RemoteImport> Find(uint32_t index) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<RemoteImport>> entries_;
  std::vector<uint32_t> free_;
};

}  // namespace weightcast::endpoint
