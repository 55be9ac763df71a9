#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weightcast/clock.h"

/// What a process counts and times of itself. Counters and timings live as long as the process; adding is a
/// few relaxed atomics, from any thread.
namespace weightcast::trace {

/// Something that happens.
class Counter {
 public:
  void Add(uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// Something that takes time: a histogram.
class Timing {
 public:
  /// The buckets' upper bounds in seconds; one bucket more has no bound.
  static constexpr std::array<double, 19> kBounds{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
                                                  0.025,  0.05,    0.1,    0.25,  0.5,    1,     2.5,
                                                  5,      10,      25,     50,    100};
  using Buckets = std::array<uint64_t, kBounds.size() + 1>;

  void Add(Duration duration);
  [[nodiscard]] Duration total() const { return Duration(total_.load(std::memory_order_relaxed)); }
  /// How many fell into each.
  [[nodiscard]] Buckets buckets() const;

 private:
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> buckets_{};
  std::atomic<int64_t> total_{0};
};

/// Times from its construction to its destruction.
class Span {
 public:
  explicit Span(Timing& timing) : timing_(timing) {}
  ~Span() { timing_.Add(Clock::now() - began_); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Timing& timing_;
  const TimePoint began_ = Clock::now();
};

/// The metric of this name ("control.plan"), made at its first use. Look it up once and keep the reference:
/// finding it takes a lock.
Counter& CounterNamed(std::string_view name);
Timing& TimingNamed(std::string_view name);

/// A name and a value each ("engine", "rollout-1").
using Labels = std::vector<std::pair<std::string, std::string>>;

/// One value of a snapshot: a counter, a part of a timing's histogram, or what a collector told.
struct Metric {
  std::string name;
  double value = 0;
  Labels labels = {};
  bool rises = true;      ///< Never falls while the process runs.
  std::string part = {};  ///< "bucket", "sum" or "count" of a histogram.
};

/// Tells at each snapshot how things stand then, while it exists; its destructor waits for a snapshot
/// under way. `collect` is called from the thread that takes the snapshot and must not wait for long.
class Collector {
 public:
  using Collect = std::function<void(std::vector<Metric>&)>;
  explicit Collector(Collect collect);
  ~Collector();
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

 private:
  const uint64_t id_;
};

/// All metrics of this process, by name.
std::vector<Metric> Snapshot();
/// The same as Prometheus reads it (text format 0.0.4). The counter "control.bytes" is
/// `weightcast_control_bytes_total`; a value that may fall has no `_total`. The timing "control.plan" is the
/// histogram `weightcast_control_plan_seconds`, with `_bucket`, `_sum` and `_count`.
std::string PrometheusText();
/// What a metric means, in a line for Prometheus; empty for one that the product does not have.
std::string_view HelpOf(std::string_view name);

}  // namespace weightcast::trace
