#include "trace/metrics.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

namespace weightcast::trace {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Counter>, std::less<>> counters;
  std::map<std::string, std::unique_ptr<Timing>, std::less<>> timings;
};

/// Never destroyed: threads may count while the process exits.
Registry& Metrics() {
  static auto* registry = new Registry;
  return *registry;
}

template <typename Map>
auto& FindOrMake(Map& map, std::string_view name) {
  const std::lock_guard lock(Metrics().mutex);
  const auto known = map.find(name);
  if (known != map.end()) return *known->second;
  return *map.emplace(name, std::make_unique<typename Map::mapped_type::element_type>()).first->second;
}

}  // namespace

void Timing::Add(Duration duration) {
  count_.fetch_add(1, std::memory_order_relaxed);
  total_.fetch_add(duration.count(), std::memory_order_relaxed);
  int64_t longest = longest_.load(std::memory_order_relaxed);
  while (longest < duration.count() &&
         !longest_.compare_exchange_weak(longest, duration.count(), std::memory_order_relaxed)) {
  }
}

Counter& CounterNamed(std::string_view name) { return FindOrMake(Metrics().counters, name); }
Timing& TimingNamed(std::string_view name) { return FindOrMake(Metrics().timings, name); }

std::vector<Metric> Snapshot() {
  std::vector<Metric> metrics;
  const std::lock_guard lock(Metrics().mutex);
  for (const auto& [name, counter] : Metrics().counters)
    metrics.push_back({name, static_cast<double>(counter->value())});
  for (const auto& [name, timing] : Metrics().timings) {
    metrics.push_back({name + ".count", static_cast<double>(timing->count())});
    metrics.push_back({name + ".longest", Seconds(timing->longest())});
    metrics.push_back({name + ".seconds", Seconds(timing->total())});
  }
  std::sort(metrics.begin(), metrics.end(), [](const Metric& a, const Metric& b) { return a.name < b.name; });
  return metrics;
}

}  // namespace weightcast::trace
