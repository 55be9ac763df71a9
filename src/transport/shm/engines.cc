#include "transport/shm/engines.h"

#include <algorithm>

namespace weightcast::transport::shm {

std::optional<uint64_t> Engine::Submit(std::span<const device::Copy> copies) {
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

Engine& Engines::Of(const device::Device& device) {
  for (const auto& engine : engines_) {
    if (engine->device().worker == device.worker) return *engine;
  }
  engines_.push_back(std::make_unique<Engine>(device, options_));
  return *engines_.back();
}

bool Engines::Advance() {
  bool any = false;
  for (const auto& engine : engines_) any |= engine->Advance();
  return any;
}

bool Engines::HasNews() const {
  return std::ranges::any_of(engines_, [](const auto& engine) { return engine->HasNews(); });
}

bool Engines::idle() const {
  return std::ranges::all_of(engines_, [](const auto& engine) { return engine->idle(); });
}

Status Engines::failure() const {
  for (const auto& engine : engines_) WC_RETURN_IF_ERROR(engine->failure());
  return Status::Ok();
}

EngineFence Engines::Fence() const {
  EngineFence fence;
  for (const auto& engine : engines_) fence.push_back(engine->newest());
  return fence;
}

bool Engines::Over(const EngineFence& fence) const {
  for (size_t i = 0; i < fence.size(); ++i) {
    if (!engines_[i]->Over(fence[i])) return false;
  }
  return true;
}

}  // namespace weightcast::transport::shm
