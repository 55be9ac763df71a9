#pragma once

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

/// Something that takes time.
class Timing {
 public:
  void Add(Duration duration);
  [[nodiscard]] uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  [[nodiscard]] Duration total() const { return Duration(total_.load(std::memory_order_relaxed)); }
  [[nodiscard]] Duration longest() const { return Duration(longest_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<uint64_t> count_{0};
  std::atomic<int64_t> total_{0};
  std::atomic<int64_t> longest_{0};
};

/// Times its own life.
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

/// One value of a snapshot: a counter, a part of a timing ("control.plan.count", ".seconds", ".longest"), or
/// what a collector told.
struct Metric {
  std::string name;
  double value = 0;
  Labels labels = {};
  bool rises = true;  ///< Never falls while the process lives.
};

/// Tells at each snapshot how things stand then, for as long as it lives; its destructor waits for a snapshot
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
/// The same as Prometheus reads it (text format 0.0.4): "control.plan.count" is
/// `weightcast_control_plan_count_total`, a value that may fall has no `_total`.
std::string PrometheusText();

}  // namespace weightcast::trace
