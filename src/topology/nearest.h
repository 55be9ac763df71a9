#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "topology/place.h"

namespace weightcast::topology {

/// NICs of one distance, as indices: data is striped over them, beginning with the first.
struct Tier {
  Distance distance;
  std::vector<size_t> nics;
};

/// For each device (a GPU, or the memory of a node) all NICs, the nearest tier first. Devices that have the
/// same tier begin it with different NICs, in turn: each of two GPUs on one switch has a NIC of its own there
/// as long as there are enough.
std::vector<std::vector<Tier>> NearestNics(std::span<const Place> devices, std::span<const Place> nics,
                                           size_t nodes);

}  // namespace weightcast::topology
