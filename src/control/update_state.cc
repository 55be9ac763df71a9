#include "control/update_state.h"

#include <algorithm>
#include <numeric>

namespace weightcast::control {

void UpdateState::Index() {
  const auto sorted = [](size_t count, auto key) {
    std::vector<uint32_t> positions(count);
    std::iota(positions.begin(), positions.end(), 0U);
    std::ranges::sort(positions, {}, key);
    return positions;
  };
  by_group_ = sorted(targets.size(), [this](uint32_t at) { return targets[at].group; });
  by_session_ = sorted(receivers.size(), [this](uint32_t at) { return receivers[at].session; });
  for (uint32_t at = 0; at < receivers.size(); ++at) {
    Target& target = *TargetOf(receivers[at].group);
    if (target.ranks++ == 0) target.first = at;
    ++target.steps[static_cast<size_t>(receivers[at].step)];
  }
  for (const Target& target : targets) Count(target, 1);
}

Target* UpdateState::TargetOf(GroupId group) {
  const auto of = [this](uint32_t at) { return targets[at].group; };
  const auto at = std::ranges::lower_bound(by_group_, group, {}, of);
  return at != by_group_.end() && of(*at) == group ? &targets[*at] : nullptr;
}

Receiver* UpdateState::ReceiverOf(SessionId session) {
  const auto of = [this](uint32_t at) { return receivers[at].session; };
  const auto at = std::ranges::lower_bound(by_session_, session, {}, of);
  return at != by_session_.end() && of(*at) == session ? &receivers[*at] : nullptr;
}

bool UpdateState::AllAt(const Target& target, RankStep step) {
  const auto first = target.steps.begin();
  return std::all_of(first, first + static_cast<ptrdiff_t>(step), [](uint32_t count) { return count == 0; });
}

uint32_t UpdateState::Before(EngineStep step) const {
  return std::accumulate(steps_.begin(), steps_.begin() + static_cast<ptrdiff_t>(step), 0U);
}

void UpdateState::Move(Receiver& rank, RankStep step) {
  Target& target = *TargetOf(rank.group);
  --target.steps[static_cast<size_t>(rank.step)];
  rank.step = step;
  ++target.steps[static_cast<size_t>(rank.step)];
}

void UpdateState::Move(Target& target, EngineStep step, uint32_t part) {
  Count(target, -1);
  target.step = step;
  target.part = part;
  Count(target, 1);
}

void UpdateState::Count(const Target& target, int sign) {
  steps_[static_cast<size_t>(target.step)] += static_cast<uint32_t>(sign);
  if (target.step <= EngineStep::kGranting && target.part == 0) ungranted_ += static_cast<uint32_t>(sign);
}

}  // namespace weightcast::control
