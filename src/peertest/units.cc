#include "peertest/units.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"

namespace weightcast::peertest {
namespace {

/// With three digits.
std::string Short(double value) { return Decimal(value, value < 10 ? 2 : value < 100 ? 1 : 0); }

}  // namespace

double BestGbit(const std::vector<Rate>& rates) {
  double best = 0;
  for (const Rate& one : rates) best = std::max(best, one.gbit);
  return best;
}

double LinkGbit(const HostReport& here, const HostReport& there) {
  if (here.mbit <= 0 || there.mbit <= 0) return 0;
  return static_cast<double>(std::min(here.mbit, there.mbit)) / 1e3;
}

std::string GbitText(double gbit) {
  return gbit >= 1 ? StrCat(Short(gbit), " Gbit/s") : StrCat(Short(gbit * 1e3), " Mbit/s");
}

std::string TimeText(double seconds) {
  if (seconds >= 1) return StrCat(Short(seconds), " s");
  return seconds >= 1e-3 ? StrCat(Short(seconds * 1e3), " ms") : StrCat(Short(seconds * 1e6), " us");
}

std::string PercentText(double part) { return StrCat(static_cast<int64_t>(std::lround(100 * part)), " %"); }

}  // namespace weightcast::peertest
