#include "base/half_open.h"

#include <algorithm>

#include "base/process.h"
#include "base/random.h"

namespace weightcast {

size_t HalfOpen::Most() { return std::clamp<size_t>(DescriptorLimit() / 4, 16, 4096); }

void HalfOpen::Insert(uint64_t number, bool heard) {
  std::vector<uint64_t>& numbers = numbers_[heard ? 1 : 0];
  places_[number] = {.heard = heard, .index = numbers.size()};
  numbers.push_back(number);
}

void HalfOpen::Add(uint64_t number) { Insert(number, /*heard=*/false); }

void HalfOpen::Heard(uint64_t number) {
  const auto found = places_.find(number);
  if (found == places_.end() || found->second.heard) return;
  Remove(number);
  Insert(number, /*heard=*/true);
}

void HalfOpen::Remove(uint64_t number) {
  const auto found = places_.find(number);
  if (found == places_.end()) return;
  const Place place = found->second;
  std::vector<uint64_t>& numbers = numbers_[place.heard ? 1 : 0];
  numbers[place.index] = numbers.back();
  places_[numbers.back()].index = place.index;
  numbers.pop_back();
  places_.erase(number);
}

uint64_t HalfOpen::Victim() const {
  const std::vector<uint64_t>& numbers = numbers_[numbers_[0].empty() ? 1 : 0];
  return numbers[RandomId() % numbers.size()];
}

}  // namespace weightcast
