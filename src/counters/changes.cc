#include "counters/changes.h"

#include <algorithm>

namespace weightcast::counters {
namespace {

const Device* Find(const Reading& reading, const Device& like) {
  const auto found = std::ranges::find_if(
      reading.devices, [&](const Device& one) { return one.name == like.name && one.kind == like.kind; });
  return found == reading.devices.end() ? nullptr : &*found;
}

}  // namespace

std::optional<uint64_t> Between(const Count& before, const Count& after) {
  if (after.value >= before.value) return (after.value - before.value) * after.unit;
  // From the upper half to the lower half of its range; a counter that began again is seldom so high.
  for (const int bits : {32, 64}) {
    const uint64_t half = uint64_t{1} << (bits - 1);
    const uint64_t mask = half | (half - 1);
    if (before.value <= mask && before.value >= half && ((after.value - before.value) & mask) < half)
      return ((after.value - before.value) & mask) * after.unit;
  }
  return std::nullopt;
}

std::vector<Change> Changes(const Reading& before, const Reading& after) {
  std::vector<Change> changes;
  for (const Device& now : after.devices) {
    const Device* const then = Find(before, now);
    if (then == nullptr) continue;
    Change& change = changes.emplace_back(Change{.device = now.name, .kind = now.kind, .counts = {}});
    for (size_t i = 0; i < kQuantities; ++i) {
      if (then->counts.at(i) && now.counts.at(i))
        change.counts.at(i) = Between(*then->counts.at(i), *now.counts.at(i));
    }
  }
  return changes;
}

std::vector<std::string> Gone(const Reading& before, const Reading& after) {
  std::vector<std::string> names;
  for (const Device& then : before.devices)
    if (Find(after, then) == nullptr) names.push_back(then.name);
  return names;
}

std::vector<std::string> BeganAgain(const Reading& before, const Reading& after) {
  std::vector<std::string> names;
  for (const Device& now : after.devices) {
    const Device* const then = Find(before, now);
    for (size_t i = 0; then != nullptr && i < kQuantities; ++i) {
      if (!then->counts.at(i) || !now.counts.at(i) || Between(*then->counts.at(i), *now.counts.at(i)))
        continue;
      names.push_back(now.name);
      break;
    }
  }
  return names;
}

}  // namespace weightcast::counters
