#include "control/offers.h"

#include <algorithm>

namespace weightcast::control {

uint32_t Offers::Of(int64_t number) const {
  const Entry* entry = FindSorted(entries_, number, &Entry::number);
  return entry == nullptr ? 0 : entry->trainers;
}

void Offers::Add(const Worker& trainer) {
  auto at = std::ranges::lower_bound(entries_, trainer.offered, {}, &Entry::number);
  if (at == entries_.end() || at->number != trainer.offered)
    at = entries_.insert(at, {.number = trainer.offered});
  ++at->trainers;
  if (!trainer.waiting) return;
  ++at->waiting;
  ++waiting_;
}

void Offers::Remove(const Worker& trainer) {
  const auto at = std::ranges::lower_bound(entries_, trainer.offered, {}, &Entry::number);
  if (trainer.waiting) {
    --at->waiting;
    --waiting_;
  }
  if (--at->trainers == 0) entries_.erase(at);
}

}  // namespace weightcast::control
