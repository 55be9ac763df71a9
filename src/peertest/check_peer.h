#pragma once

#include <vector>

#include "doctor/finding.h"
#include "peertest/facts.h"

namespace weightcast::peertest {

// What a rate is judged by: against the link's speed, the other direction, or other pairs.
inline constexpr double kSlowWarn = 0.6;
inline constexpr double kSlowFail = 0.25;
/// Gbit/s that tcp is asked for where the link has more: what a few ordinary cores move.
inline constexpr double kTcpEnough = 16;

/// A pure function.
std::vector<doctor::Finding> CheckPeer(const PeerFacts& facts);

}  // namespace weightcast::peertest
