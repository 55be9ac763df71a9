#include "peertest/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/statistics.h"
#include "peertest/units.h"

namespace weightcast::peertest {

Latency Summarise(const std::vector<double>& seconds, int64_t lost) {
  Latency latency{.samples = static_cast<int64_t>(seconds.size()), .lost = lost};
  if (seconds.empty()) return latency;
  std::vector<double> changes;
  for (size_t i = 1; i < seconds.size(); ++i) changes.push_back(std::abs(seconds[i] - seconds[i - 1]));
  latency.jitter_p50 = Median(changes);
  if (!changes.empty())
    latency.jitter =
        std::accumulate(changes.begin(), changes.end(), 0.0) / static_cast<double>(changes.size());
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  latency.p50 = sorted[sorted.size() / 2];
  latency.p99 = sorted[std::min(sorted.size() - 1, sorted.size() * 99 / 100)];
  latency.most = sorted.back();
  return latency;
}

void KeepBetter(PeerFacts& facts, const PeerFacts& again) {
  for (const TransportFacts& other : again.transports) {
    if (!other.skipped.empty() || !other.error.empty()) continue;
    const auto one = std::ranges::find(facts.transports, other.name, &TransportFacts::name);
    if (one == facts.transports.end()) continue;
    if (!one->error.empty()) {
      *one = other;
      continue;
    }
    if (BestGbit(other.out) > BestGbit(one->out)) one->out = other.out;
    if (BestGbit(other.back) > BestGbit(one->back)) one->back = other.back;
    if (other.latency.samples > 0 && other.latency.p50 < one->latency.p50) one->latency = other.latency;
  }
}

}  // namespace weightcast::peertest
