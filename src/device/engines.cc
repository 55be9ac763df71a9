#include "device/engines.h"

#include <algorithm>

namespace weightcast::device {

std::optional<uint64_t> Engine::Submit(std::span<const Copy> copies) {
  const auto ticket = queue_.Submit(copies);
  if (!ticket) return std::nullopt;
  newest_ = static_cast<uint64_t>(*ticket);
  return newest_;
}

bool Engine::Advance() {
  const uint64_t before = over_;
  while (const auto finished = queue_.TakeFinished()) {
    over_ = static_cast<uint64_t>(finished->ticket);
    if (!finished->ok) first_failed_ = std::min(first_failed_, over_);
  }
  return over_ > before;
}

Status Engine::failure() const {
  const auto& health = device_.worker->health();
  return health->lost() ? health->failure() : queue_.failure();
}

Engine& Engines::Of(const Device& device, Order order) {
  for (const Made& made : made_) {
    if (made.order == order && made.engine->device().worker == device.worker) return *made.engine;
  }
  CopyQueueOptions options = options_;
  if (order == Order::kOneByOne) options.streams = 1;  // Copies of one stream run in order.
  return *made_.emplace_back(order, std::make_unique<Engine>(device, options)).engine;
}

bool Engines::Advance() {
  bool any = false;
  for (const Made& made : made_) any |= made.engine->Advance();
  return any;
}

bool Engines::HasNews() const {
  return std::ranges::any_of(made_, [](const Made& made) { return made.engine->HasNews(); });
}

bool Engines::idle() const {
  return std::ranges::all_of(made_,
                             [](const Made& made) { return made.engine->Over(made.engine->newest()); });
}

Status Engines::failure() const {
  for (const Made& made : made_) WC_RETURN_IF_ERROR(made.engine->failure());
  return Status::Ok();
}

EngineFence Engines::Fence() const {
  EngineFence fence;
  for (const Made& made : made_) fence.push_back(made.engine->newest());
  return fence;
}

bool Engines::Over(const EngineFence& fence) const {
  for (size_t i = 0; i < fence.size(); ++i) {
    if (!made_[i].engine->Over(fence[i])) return false;
  }
  return true;
}

}  // namespace weightcast::device
