#include "trace/metrics.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "base/strings.h"

namespace weightcast::trace {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Counter>, std::less<>> counters;
  std::map<std::string, std::unique_ptr<Timing>, std::less<>> timings;

  std::mutex collecting;  ///< Held while collectors run.
  std::map<uint64_t, Collector::Collect> collectors;
  uint64_t last_collector = 0;
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

uint64_t AddCollector(Collector::Collect collect) {
  Registry& registry = Metrics();
  const std::lock_guard lock(registry.collecting);
  registry.collectors.emplace(++registry.last_collector, std::move(collect));
  return registry.last_collector;
}

/// Letters, digits and underscores.
std::string FamilyName(const Metric& metric) {
  std::string name = StrCat("weightcast_", metric.name, metric.part.empty() && metric.rises ? "_total" : "");
  for (char& letter : name) {
    const bool plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= '0' && letter <= '9');
    if (!plain) letter = '_';
  }
  return name;
}

std::string_view TypeOf(const Metric& metric) {
  if (!metric.part.empty()) return "histogram";
  return metric.rises ? "counter" : "gauge";
}

/// Buckets count what is below their bound, and so all of the buckets before.
void AddHistogram(const std::string& name, const Timing& timing, std::vector<Metric>& metrics) {
  const Timing::Buckets buckets = timing.buckets();
  uint64_t below = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    below += buckets[i];
    const std::string bound = i < Timing::kBounds.size() ? StrCat(Timing::kBounds[i]) : "+Inf";
    metrics.push_back({name, static_cast<double>(below), {{"le", bound}}, true, "bucket"});
  }
  metrics.push_back({name, Seconds(timing.total()), {}, true, "sum"});
  metrics.push_back({name, static_cast<double>(below), {}, true, "count"});
}

std::string PrometheusLabels(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    text += StrCat(text.empty() ? "{" : ",", name, "=\"");
    for (const char letter : value) {
      if (letter == '\n') {
        text += "\\n";
        continue;
      }
      if (letter == '"' || letter == '\\') text += '\\';
      text += letter;
    }
    text += '"';
  }
  return text.empty() ? text : text + "}";
}

/// Whole numbers to the last digit: bytes are counted.
std::string ValueText(double value) {
  constexpr double kExact = 9007199254740992;  // 2^53
  const bool whole =
      value > -kExact && value < kExact && value == static_cast<double>(static_cast<int64_t>(value));
  return whole ? std::to_string(static_cast<int64_t>(value)) : StrCat(value);
}

}  // namespace

void Timing::Add(Duration duration) {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), Seconds(duration)) - kBounds.begin();
  buckets_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  total_.fetch_add(duration.count(), std::memory_order_relaxed);
}

Timing::Buckets Timing::buckets() const {
  Buckets buckets{};
  for (size_t i = 0; i < buckets.size(); ++i) buckets[i] = buckets_[i].load(std::memory_order_relaxed);
  return buckets;
}

Counter& CounterNamed(std::string_view name) { return FindOrMake(Metrics().counters, name); }
Timing& TimingNamed(std::string_view name) { return FindOrMake(Metrics().timings, name); }

Collector::Collector(Collect collect) : id_(AddCollector(std::move(collect))) {}
Collector::~Collector() {
  const std::lock_guard lock(Metrics().collecting);
  Metrics().collectors.erase(id_);
}

std::vector<Metric> Snapshot() {
  std::vector<Metric> metrics;
  {
    const std::lock_guard lock(Metrics().mutex);
    for (const auto& [name, counter] : Metrics().counters)
      metrics.push_back({name, static_cast<double>(counter->value())});
    for (const auto& [name, timing] : Metrics().timings) AddHistogram(name + ".seconds", *timing, metrics);
  }
  {
    const std::lock_guard lock(Metrics().collecting);
    for (const auto& [id, collect] : Metrics().collectors) collect(metrics);
  }
  std::ranges::stable_sort(metrics, {}, &Metric::name);
  return metrics;
}

std::string PrometheusText() {
  std::string text;
  std::string last;
  for (const Metric& metric : Snapshot()) {
    const std::string family = FamilyName(metric);
    if (family != last) {
      const std::string_view help = HelpOf(metric.name);
      if (!help.empty()) text += StrCat("# HELP ", family, " ", help, "\n");
      text += StrCat("# TYPE ", family, " ", TypeOf(metric), "\n");
      last = family;
    }
    text += StrCat(family, metric.part.empty() ? "" : "_", metric.part, PrometheusLabels(metric.labels), " ",
                   ValueText(metric.value), "\n");
  }
  return text;
}

}  // namespace weightcast::trace
