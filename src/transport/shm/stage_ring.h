#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "device/devices.h"
#include "device/health.h"
#include "transport/shm/context.h"
#include "transport/shm/shared_memory.h"
#include "weightcast/status.h"

namespace weightcast::transport::shm {

/// The staging ring of one direction of a link, as one end has it: shared host memory that its devices reach
/// once it is pinned here. Pinning is left to wc-device. The holder of progress alone.
class StageRing {
 public:
  enum class Pin : uint8_t { kWaiting, kPinned, kRefused };

  /// `budgeted`: how much of this transport's StageBudget it has; 0 where no device was in use yet.
  StageRing(Context& context, Mapping mapping, uint64_t budgeted, std::string peer);
  StageRing(const StageRing&) = delete;
  StageRing& operator=(const StageRing&) = delete;
  ~StageRing();

  [[nodiscard]] uint64_t length() const { return length_; }
  [[nodiscard]] std::byte* At(uint64_t position) const { return data_ + position % length_; }
  /// Whether devices reach it. Asked first, it has `device` pin it, for all devices of this process.
  Pin PinFor(const device::Device& device);
  /// Why the pin cannot be trusted any more: the context of its device is lost.
  [[nodiscard]] Status failure() const { return health_ == nullptr ? Status::Ok() : health_->failure(); }

 private:
  struct Pinned;
  void Begin(const device::Device& device);
  void OnPinned(const Status& status, std::shared_ptr<Pinned> pinned);

  Context* context_;
  std::shared_ptr<Mapping> mapping_;
  std::byte* data_;
  uint64_t length_;
  uint64_t budgeted_;
  const std::string peer_;  ///< As warnings call it.
  bool asked_ = false;
  Pin pin_ = Pin::kWaiting;
  std::shared_ptr<Pinned> pinned_;
  std::shared_ptr<device::Health> health_;  ///< Of the device that pins.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

/// Warns that no more memory may be pinned, for the peer of this name.
void WarnOfBudget(std::string_view peer);

}  // namespace weightcast::transport::shm
