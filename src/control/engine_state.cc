#include "control/engine_state.h"

#include <algorithm>
#include <numeric>

namespace weightcast::control {

std::string_view NameOf(EngineStep step) {
  static constexpr std::string_view kNames[] = {
      "sourceless", "pausing",    "granting", "granted",  "writing", "ready", "halting",
      "committing", "activating", "serving",  "resuming", "done",    "out"};
  static_assert(std::size(kNames) == static_cast<size_t>(EngineStep::kOut) + 1);
  return kNames[static_cast<size_t>(step)];
}

void EnginesState::Index() {
  by_group_.resize(targets.size());
  std::iota(by_group_.begin(), by_group_.end(), 0U);
  std::ranges::sort(by_group_, {}, [this](uint32_t at) { return targets[at].group; });
  for (const Target& target : targets) Count(target, 1);
}

Target* EnginesState::Of(GroupId group) {
  const uint32_t* at = FindSorted(by_group_, group, [this](uint32_t one) { return targets[one].group; });
  return at == nullptr ? nullptr : &targets[*at];
}

void EnginesState::Move(Target& target, EngineStep step, uint32_t part) {
  Count(target, -1);
  target.step = step;
  target.part = part;
  Count(target, 1);
}

void EnginesState::Count(const Target& target, int sign) {
  counts_.steps[static_cast<size_t>(target.step)] += static_cast<uint32_t>(sign);
  if (target.step <= EngineStep::kGranting && target.part == 0) ungranted_ += static_cast<uint32_t>(sign);
}

}  // namespace weightcast::control
