#pragma once

#include "doctor/finding.h"
#include "peertest/facts.h"

namespace weightcast::peertest {

/// Pure functions; parts of CheckPeer. Each begins a group.
void CheckTransport(const PeerFacts& facts, const TransportFacts& transport, doctor::Findings& findings);
void CheckClasses(const PeerFacts& facts, doctor::Findings& findings);

}  // namespace weightcast::peertest
