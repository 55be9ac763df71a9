#include "trace/metrics.h"

#include <gtest/gtest.h>

#include <thread>

namespace weightcast::trace {
namespace {

double ValueOf(const std::string& name) {
  for (const Metric& metric : Snapshot())
    if (metric.name == name) return metric.value;
  return -1;
}

TEST(Metrics, OneNameIsOneMetric) {
  EXPECT_EQ(&CounterNamed("test.a"), &CounterNamed("test.a"));
  EXPECT_NE(&CounterNamed("test.a"), &CounterNamed("test.b"));
  CounterNamed("test.a").Add(3);
  CounterNamed("test.a").Add();
  EXPECT_EQ(ValueOf("test.a"), 4);
  EXPECT_EQ(ValueOf("test.none"), -1);
}

TEST(Metrics, TimingsKeepCountSumAndLongest) {
  Timing& timing = TimingNamed("test.timing");
  timing.Add(std::chrono::seconds(2));
  timing.Add(std::chrono::seconds(3));
  timing.Add(std::chrono::seconds(1));
  EXPECT_EQ(ValueOf("test.timing.count"), 3);
  EXPECT_EQ(ValueOf("test.timing.seconds"), 6);
  EXPECT_EQ(ValueOf("test.timing.longest"), 3);
  {
    const Span span(timing);
  }
  EXPECT_EQ(timing.count(), 4U);
}

TEST(Metrics, ManyThreadsCountEverything) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      for (int n = 0; n < 10000; ++n) {
        CounterNamed("test.threads").Add();
        TimingNamed("test.spans").Add(Duration(n));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(CounterNamed("test.threads").value(), 80000U);
  EXPECT_EQ(TimingNamed("test.spans").count(), 80000U);
  EXPECT_EQ(TimingNamed("test.spans").longest(), Duration(9999));
}

TEST(Metrics, TheSnapshotIsSorted) {
  CounterNamed("test.z");
  TimingNamed("test.m");
  std::string last;
  for (const Metric& metric : Snapshot()) {
    EXPECT_LT(last, metric.name);
    last = metric.name;
  }
}

}  // namespace
}  // namespace weightcast::trace
