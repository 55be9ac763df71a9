#pragma once

#include <random>
#include <string>

#include "soak/cluster.h"

namespace weightcast::soak {

/// Both return what was not as promised, empty if all was. The cluster's trainers hold everything each, and
/// nothing else goes wrong there.

/// One of two trainers is killed while its bytes are on their way: the update commits from the other.
std::string KillOneTrainer(Cluster& cluster, std::mt19937& random);
/// All trainers are killed once engine a serves a version that engine b has not come for (landing in_place,
/// policy each): b gets it from a.
std::string KillAllTrainers(Cluster& cluster);

}  // namespace weightcast::soak
