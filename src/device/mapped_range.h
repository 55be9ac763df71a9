#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "device/handles.h"
#include "device/health.h"
#include "device/mapping.h"

namespace weightcast::device {

/// Addresses of this process that show somebody's memory to a device. wc-device only; unmaps at its end.
class Mappings::Range {
 public:
  explicit Range(std::shared_ptr<Health> health) : health_(std::move(health)) {}
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range();

  /// Memory of this process: nothing to map, and nothing to unmap.
  void Own(std::byte* address, size_t length);
  Status OpenLegacy(const LegacyHandle& handle, size_t length);
  /// Addresses for blocks that follow.
  Status Reserve(size_t length);
  Status MapBlock(const Handle& handle, size_t length);
  /// After the last block.
  Status GiveAccess();

  [[nodiscard]] std::byte* address() const { return address_; }
  [[nodiscard]] size_t length() const { return length_; }
  [[nodiscard]] size_t blocks() const { return mapped_.size() + (legacy_ ? 1 : 0); }

 private:
  [[nodiscard]] drivers::CUdeviceptr At(size_t offset) const {
    return reinterpret_cast<drivers::CUdeviceptr>(address_) + offset;
  }
  Result<drivers::CUmemGenericAllocationHandle> ImportHandle(const Handle& handle);

  const std::shared_ptr<Health> health_;
  std::byte* address_ = nullptr;
  size_t length_ = 0;
  bool legacy_ = false;
  bool reserved_ = false;
  std::vector<size_t> mapped_;  ///< Lengths of the blocks that are mapped, from the first address on.
  size_t end_ = 0;              ///< Where the last of them ends.
};

}  // namespace weightcast::device
