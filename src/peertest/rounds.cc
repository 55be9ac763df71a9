#include "peertest/rounds.h"

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

}  // namespace weightcast::peertest
