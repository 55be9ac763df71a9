#pragma once

#include <vector>

#include "peertest/facts.h"

namespace weightcast::peertest {

/// `seconds`: in the order in which they were measured.
Latency Summarise(const std::vector<double>& seconds, int64_t lost = 0);

/// Puts what `again` has measured better into `facts`, direction by direction: of two measurements of one
/// path the better one had less beside it. A transport that failed is replaced where it works in `again`.
void KeepBetter(PeerFacts& facts, const PeerFacts& again);

}  // namespace weightcast::peertest
