#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "device/copy_queue.h"
#include "device/gpus.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// Copies of one device's memory that the caller waits for, over a stream of its own: for threads of the user
/// and for workers, never while holding progress. Host memory passes through a pinned block of 4 MiB.
/// Thread safe; one call at a time moves bytes. After fork() every call fails and nothing is given back.
class BlockingCopies {
 public:
  static Result<std::shared_ptr<BlockingCopies>> Create(std::shared_ptr<const Context> context);
  BlockingCopies(const BlockingCopies&) = delete;
  BlockingCopies& operator=(const BlockingCopies&) = delete;
  ~BlockingCopies();

  // Errors: kInternal, with the driver's words.
  Status ToHost(std::span<std::byte> to, const std::byte* from);
  Status ToDevice(std::byte* to, std::span<const std::byte> from);
  /// Copies inside the device, all begun before the first is waited for.
  Status Within(std::span<const Copy> copies);

  [[nodiscard]] const std::shared_ptr<const Context>& context() const { return context_; }

 private:
  explicit BlockingCopies(std::shared_ptr<const Context> context) : context_(std::move(context)) {}
  Status Open();
  Status Begin(const void* to, const void* from, size_t length);
  Status Await();

  const std::shared_ptr<const Context> context_;
  std::mutex mutex_;
  drivers::CUstream stream_{};
  drivers::CUevent event_{};
  void* pinned_ = nullptr;
};

}  // namespace weightcast::device
