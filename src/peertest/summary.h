#pragma once

#include <vector>

#include "peertest/facts.h"

namespace weightcast::peertest {

/// `seconds`: in the order in which they were measured.
Latency Summarise(const std::vector<double>& seconds, int64_t lost = 0);
/// The middle one; 0 of none.
double MedianOf(std::vector<double> values);

}  // namespace weightcast::peertest
