#include "trace/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace weightcast::trace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

double ValueOf(const std::string& name, const std::string& part = "", const Labels& labels = {}) {
  for (const Metric& metric : Snapshot())
    if (metric.name == name && metric.part == part && metric.labels == labels) return metric.value;
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

TEST(Metrics, TimingsAreHistograms) {
  Timing& timing = TimingNamed("test.timing");
  timing.Add(std::chrono::seconds(2));
  timing.Add(std::chrono::seconds(3));
  timing.Add(std::chrono::milliseconds(2500));
  timing.Add(std::chrono::hours(1));
  timing.Add(Duration(0));
  const std::string name = "test.timing.seconds";
  EXPECT_EQ(ValueOf(name, "count"), 5);
  EXPECT_EQ(ValueOf(name, "sum"), 3607.5);
  EXPECT_EQ(ValueOf(name, "bucket", {{"le", "0.0001"}}), 1);
  EXPECT_EQ(ValueOf(name, "bucket", {{"le", "1"}}), 1);
  EXPECT_EQ(ValueOf(name, "bucket", {{"le", "2.5"}}), 3) << "a bound belongs to its bucket";
  EXPECT_EQ(ValueOf(name, "bucket", {{"le", "5"}}), 4);
  EXPECT_EQ(ValueOf(name, "bucket", {{"le", "100"}}), 4);
  EXPECT_EQ(ValueOf(name, "bucket", {{"le", "+Inf"}}), 5);
  {
    const Span span(timing);
  }
  EXPECT_EQ(ValueOf(name, "count"), 6);
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
  EXPECT_EQ(ValueOf("test.spans.seconds", "count"), 80000);
  EXPECT_EQ(TimingNamed("test.spans").total(), Duration(8 * 9999 * 5000));
}

TEST(Metrics, TheSnapshotIsSorted) {
  CounterNamed("test.z");
  TimingNamed("test.m");
  std::string last;
  for (const Metric& metric : Snapshot()) {
    EXPECT_LE(last, metric.name);
    last = metric.name;
  }
}

TEST(PrometheusText, CountersTimingsAndCollectors) {
  CounterNamed("prom.bytes").Add(12345678901);
  TimingNamed("prom.step").Add(std::chrono::milliseconds(1500));
  CounterNamed("control.bytes").Add();
  std::string text;
  {
    const Collector collector([](std::vector<Metric>& metrics) {
      metrics.push_back({"prom.version", 7, {{"engine", "a \"b\"\\\n"}}, /*rises=*/false});
      metrics.push_back({"prom.version", -1, {{"engine", "c"}}, /*rises=*/false});
    });
    text = PrometheusText();
  }
  EXPECT_THAT(
      text,
      HasSubstr("# TYPE weightcast_prom_bytes_total counter\nweightcast_prom_bytes_total 12345678901\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE weightcast_prom_step_seconds histogram\n"
                              "weightcast_prom_step_seconds_bucket{le=\"0.0001\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nweightcast_prom_step_seconds_bucket{le=\"2.5\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("\nweightcast_prom_step_seconds_bucket{le=\"+Inf\"} 1\n"
                        "weightcast_prom_step_seconds_sum 1.5\nweightcast_prom_step_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE weightcast_prom_version gauge\n"
                              "weightcast_prom_version{engine=\"a \\\"b\\\"\\\\\\n\"} 7\n"
                              "weightcast_prom_version{engine=\"c\"} -1\n"));
  EXPECT_THAT(text, HasSubstr("# HELP weightcast_control_bytes_total Bytes that all ranks together"));
  EXPECT_THAT(PrometheusText(), Not(HasSubstr("prom_version"))) << "a collector that is gone tells nothing";
}

}  // namespace
}  // namespace weightcast::trace
