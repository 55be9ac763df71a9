#include "control/rank_state.h"

#include <algorithm>
#include <numeric>

namespace weightcast::control {

void RanksState::Index() {
  by_session_.resize(receivers.size());
  std::iota(by_session_.begin(), by_session_.end(), 0U);
  std::ranges::sort(by_session_, {}, [this](uint32_t at) { return receivers[at].session; });
  engines_.clear();
  for (uint32_t at = 0; at < receivers.size(); ++at) {
    if (at == 0 || receivers[at].group != receivers[at - 1].group)
      engines_.push_back({.engine = receivers[at].group, .first = at});
    Counts& engine = engines_.back();
    ++engine.ranks;
    ++engine.steps[static_cast<size_t>(receivers[at].step)];
  }
  std::ranges::sort(engines_, {}, &Counts::engine);
}

Receiver* RanksState::Of(SessionId session) {
  const uint32_t* at =
      FindSorted(by_session_, session, [this](uint32_t one) { return receivers[one].session; });
  return at == nullptr ? nullptr : &receivers[*at];
}

const RanksState::Counts* RanksState::CountsOf(GroupId engine) const {
  return FindSorted(engines_, engine, &Counts::engine);
}

std::span<Receiver> RanksState::RanksOf(GroupId engine) {
  const Counts* counts = CountsOf(engine);
  if (counts == nullptr) return {};
  return std::span(receivers).subspan(counts->first, counts->ranks);
}

bool RanksState::AllAt(GroupId engine, RankStep step) const {
  const Counts* counts = CountsOf(engine);
  if (counts == nullptr) return true;
  const auto first = counts->steps.begin();
  return std::all_of(first, first + static_cast<ptrdiff_t>(step), [](uint32_t count) { return count == 0; });
}

void RanksState::Move(Receiver& rank, RankStep step) {
  auto& steps = const_cast<Counts*>(CountsOf(rank.group))->steps;
  --steps[static_cast<size_t>(rank.step)];
  rank.step = step;
  ++steps[static_cast<size_t>(rank.step)];
}

}  // namespace weightcast::control
