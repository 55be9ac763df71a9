#include "topology/nearest.h"

#include <algorithm>
#include <map>
#include <utility>

namespace weightcast::topology {

std::vector<std::vector<Tier>> NearestNics(std::span<const Place> devices, std::span<const Place> nics,
                                           size_t nodes) {
  std::vector<std::vector<Tier>> all;
  std::map<std::pair<Distance, std::vector<size_t>>, size_t> turns;  // How many devices have had such a tier.
  for (const Place& device : devices) {
    std::map<Distance, std::vector<size_t>> by_distance;
    for (size_t nic = 0; nic < nics.size(); ++nic)
      by_distance[DistanceOf(device, nics[nic], nodes)].push_back(nic);
    auto& tiers = all.emplace_back();
    for (auto& [distance, tied] : by_distance) {
      const size_t turn = turns[{distance, tied}]++ % tied.size();
      std::ranges::rotate(tied, tied.begin() + static_cast<std::ptrdiff_t>(turn));
      tiers.push_back({distance, std::move(tied)});
    }
  }
  return all;
}

}  // namespace weightcast::topology
