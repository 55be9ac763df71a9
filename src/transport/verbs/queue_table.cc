#include "transport/verbs/queue_table.h"

namespace weightcast::transport::verbs {
namespace {

/// An id is the slot, and above it the slot's generation.
constexpr uint32_t kSlotBits = 16;
constexpr uint32_t kSlotMask = (1U << kSlotBits) - 1;
constexpr uint32_t kGenerationMask = 0x7fff;

}  // namespace

uint32_t QueueTable::Attach(uint32_t number) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  by_number_[number] = nullptr;
  return slots_[slot].generation << kSlotBits | slot;
}

void QueueTable::SetOwner(uint32_t number, uint32_t id, QueueOwner& owner) {
  slots_[id & kSlotMask].owner = &owner;
  by_number_[number] = &owner;
}

void QueueTable::Detach(uint32_t number, uint32_t id) {
  Slot& slot = slots_[id & kSlotMask];
  slot.owner = nullptr;
  slot.generation = (slot.generation + 1) & kGenerationMask;
  free_slots_.push_back(id & kSlotMask);
  by_number_.erase(number);
}

QueueOwner* QueueTable::OwnerById(uint32_t id) const {
  const Slot& slot = slots_[id & kSlotMask];
  return slot.generation == id >> kSlotBits ? slot.owner : nullptr;
}

QueueOwner* QueueTable::OwnerByNumber(uint32_t number) const {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

}  // namespace weightcast::transport::verbs
