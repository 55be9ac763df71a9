#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/blocking_copies.h"
#include "device/buffer.h"
#include "device/gpus.h"
#include "weightcast/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// How a process allocates the memory of a GPU.
enum class DeviceAllocation : uint8_t {
  kPlain,  ///< cuMemAlloc.
  kPages,  ///< Mappings of 2 MiB with a handle each, as torch's expandable segments are.
};

/// A block of device memory, as a training framework would have it: this process keeps the primary context of
/// the device until it ends.
class DeviceBlock {
 public:
  /// On the `index`-th device, counted round. kUnavailable where there is no CUDA; kExhausted.
  static Result<std::shared_ptr<DeviceBlock>> Make(const Settings& settings, int64_t index,
                                                   DeviceAllocation allocation, size_t bytes);
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  ~DeviceBlock();

  [[nodiscard]] const Memory& memory() const { return memory_; }
  Status Write(size_t offset, std::span<const std::byte> bytes);
  Status Read(size_t offset, std::span<std::byte> bytes) const;

 private:
  explicit DeviceBlock(std::shared_ptr<device::BlockingCopies> copies) : copies_(std::move(copies)) {}
  Status MapPages(size_t bytes);
  Status MapPage(size_t offset);

  const std::shared_ptr<device::BlockingCopies> copies_;
  std::unique_ptr<device::Buffer> buffer_;  ///< kPlain.
  size_t reserved_ = 0;                     ///< kPages: bytes of addresses.
  size_t mapped_ = 0;                       ///< kPages: bytes of them that have memory.
  Memory memory_;
};

}  // namespace weightcast::tools
