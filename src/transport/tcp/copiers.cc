#include "transport/tcp/copiers.h"

#include <algorithm>
#include <array>

#include "transport/tcp/staging.h"

namespace weightcast::transport::tcp {
namespace {

device::CopyQueueOptions OptionsFor(const StagedDevice& device, Direction direction) {
  device::CopyQueueOptions options = device::CopyOptions(device.staging->settings());
  if (direction == Direction::kToDevice) options.streams = 1;  // Copies of one stream run in order.
  return options;
}

}  // namespace

Copier::Copier(const StagedDevice& device, Direction direction)
    : device_(&device), direction_(direction), queue_(device.device.worker, OptionsFor(device, direction)) {}

std::optional<uint64_t> Copier::Submit(const device::Copy& copy) {
  const std::array<device::Copy, 1> batch = {copy};
  const auto ticket = queue_.Submit(batch);
  if (!ticket) return std::nullopt;
  newest_ = static_cast<uint64_t>(*ticket);
  return newest_;
}

bool Copier::Advance() {
  const uint64_t before = over_;
  while (const auto finished = queue_.TakeFinished()) {
    over_ = static_cast<uint64_t>(finished->ticket);
    if (!finished->ok) first_failed_ = std::min(first_failed_, over_);
  }
  return over_ > before;
}

Status Copier::failure() const {
  const auto& health = device_->device.worker->health();
  return health->lost() ? health->failure() : queue_.failure();
}

Copier& Copiers::Of(const StagedDevice& device, Direction direction) {
  for (const auto& copier : copiers_) {
    if (copier->Serves(device, direction)) return *copier;
  }
  copiers_.push_back(std::make_unique<Copier>(device, direction));
  return *copiers_.back();
}

bool Copiers::Advance() {
  bool any = false;
  for (const auto& copier : copiers_) any |= copier->Advance();
  return any;
}

bool Copiers::HasNews() const {
  return std::ranges::any_of(copiers_, [](const auto& copier) { return copier->HasNews(); });
}

bool Copiers::idle() const {
  return std::ranges::all_of(copiers_, [](const auto& copier) { return copier->Over(copier->newest()); });
}

Copiers::Fence Copiers::MakeFence() const {
  Fence fence;
  for (const auto& copier : copiers_) fence.push_back(copier->newest());
  return fence;
}

bool Copiers::Over(const Fence& fence) const {
  for (size_t i = 0; i < fence.size(); ++i) {
    if (!copiers_[i]->Over(fence[i])) return false;
  }
  return true;
}

Status Copiers::failure() const {
  for (const auto& copier : copiers_) {
    if (Status failure = copier->failure(); !failure.ok()) return failure;
  }
  return staging_ == nullptr ? Status::Ok() : staging_->failure();
}

}  // namespace weightcast::transport::tcp
