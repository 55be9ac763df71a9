#pragma once

#include <string>
#include <vector>

#include "peertest/facts.h"

namespace weightcast::peertest {

/// The best of all sizes.
double BestGbit(const std::vector<Rate>& rates);
/// Gbit/s that the slower of the two interfaces has; 0: unknown.
double LinkGbit(const HostReport& here, const HostReport& there);
/// "94.1 Gbit/s", "812 Mbit/s".
std::string GbitText(double gbit);
/// "12.3 us", "4.56 ms".
std::string TimeText(double seconds);
/// "10 %"
std::string PercentText(double part);

}  // namespace weightcast::peertest
