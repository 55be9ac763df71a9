#include "peertest/rounds.h"

#include <algorithm>
#include <numeric>

namespace weightcast::peertest {

// The circle method: one place stands still, the others move on by one after each round.
std::vector<std::vector<HostPair>> RoundsOf(size_t hosts) {
  std::vector<std::vector<HostPair>> rounds;
  if (hosts < 2) return rounds;
  const size_t places = hosts + hosts % 2;  // Who meets the place of nobody rests.
  std::vector<size_t> circle(places);
  std::iota(circle.begin(), circle.end(), size_t{0});
  for (size_t round = 0; round + 1 < places; ++round) {
    std::vector<HostPair> pairs;
    for (size_t i = 0; i < places / 2; ++i) {
      HostPair pair{circle[i], circle[places - 1 - i]};
      if (pair.first >= hosts || pair.second >= hosts) continue;
      if ((round + i) % 2 == 1) std::swap(pair.first, pair.second);
      pairs.push_back(pair);
    }
    rounds.push_back(std::move(pairs));
    const size_t last = circle.back();
    circle.pop_back();
    circle.insert(circle.begin() + 1, last);
  }
  return rounds;
}

std::vector<std::vector<HostPair>> RoundsOf(const std::vector<HostPair>& pairs) {
  std::vector<std::vector<HostPair>> rounds;
  const auto meet = [](const HostPair& a, const HostPair& b) {
    return a.first == b.first || a.first == b.second || a.second == b.first || a.second == b.second;
  };
  for (const HostPair& pair : pairs) {
    const auto free = std::ranges::find_if(rounds, [&](const std::vector<HostPair>& round) {
      return std::ranges::none_of(round, [&](const HostPair& one) { return meet(one, pair); });
    });
    if (free == rounds.end()) {
      rounds.push_back({pair});
    } else {
      free->push_back(pair);
    }
  }
  return rounds;
}

}  // namespace weightcast::peertest
