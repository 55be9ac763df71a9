#pragma once

#include <vector>

#include "doctor/finding.h"
#include "peertest/facts.h"

namespace weightcast::peertest {

/// Pure functions; parts of CheckPeer.
std::vector<doctor::Finding> CheckTransport(const PeerFacts& facts, const TransportFacts& transport);
std::vector<doctor::Finding> CheckClasses(const PeerFacts& facts);

}  // namespace weightcast::peertest
