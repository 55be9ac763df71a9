#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "device/gpus.h"
#include "weightcast/memory.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// Device memory of our own (staging, a shadow of the weights), which other processes can map. Plain
/// cuMemAlloc. Making and freeing one may block in the driver for as long as kernels run: never while holding
/// progress.
class Buffer {
 public:
  /// `bytes` > 0. kExhausted where the device has no room for them.
  static Result<std::unique_ptr<Buffer>> Allocate(std::shared_ptr<const Context> context, size_t bytes);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  [[nodiscard]] std::byte* address() const { return address_; }
  [[nodiscard]] size_t length() const { return length_; }
  [[nodiscard]] Memory memory() const {
    return {
        .kind = MemoryKind::kDevice, .device = context_->ordinal(), .address = address_, .length = length_};
  }

 private:
  Buffer(std::shared_ptr<const Context> context, std::byte* address, size_t length)
      : context_(std::move(context)), address_(address), length_(length) {}

  const std::shared_ptr<const Context> context_;
  std::byte* const address_;
  const size_t length_;
};

}  // namespace weightcast::device
