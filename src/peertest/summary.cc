#include "peertest/summary.h"

#include <algorithm>
#include <cmath>

namespace weightcast::peertest {

Latency Summarise(const std::vector<double>& seconds, int64_t lost) {
  Latency latency{.samples = static_cast<int64_t>(seconds.size()), .lost = lost};
  if (seconds.empty()) return latency;
  double changes = 0;
  for (size_t i = 1; i < seconds.size(); ++i) changes += std::abs(seconds[i] - seconds[i - 1]);
  if (seconds.size() > 1) latency.jitter = changes / static_cast<double>(seconds.size() - 1);
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  latency.p50 = sorted[sorted.size() / 2];
  latency.p99 = sorted[std::min(sorted.size() - 1, sorted.size() * 99 / 100)];
  latency.most = sorted.back();
  return latency;
}

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace weightcast::peertest
