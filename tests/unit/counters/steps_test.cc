#include "counters/steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"

namespace weightcast::counters {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Name(const std::string& expression, std::string_view line) {
  const auto marker = Marker::Parse(expression);
  EXPECT_TRUE(marker.ok()) << expression;
  return marker.ok() ? marker->Match(line).value_or("(none)") : "";
}

TEST(Marker, ItsFirstGroupNamesTheStep) {
  EXPECT_EQ(Name("step ([0-9]+)", "epoch 1 step 17 loss 2.5"), "17");
  EXPECT_EQ(Name(R"(Step: (\d+))", "Step: 8"), "8");
  EXPECT_EQ(Name("(warm|step) ([0-9]+)", "step 9"), "step");
}

TEST(Marker, WithoutAGroupWhatMatchedDoes) {
  EXPECT_EQ(Name("step [0-9]+", "at step 17, loss"), "step 17");
  EXPECT_EQ(Name("step( extra)?", "step 1"), "step") << "a group that took no part";
  EXPECT_EQ(Name("step ([0-9]+)", "no such thing"), "(none)");
}

TEST(Marker, NamesArePrintableAndShort) {
  EXPECT_EQ(Name("step (.*)", "step \x1b[31mred"), " [31mred");
  EXPECT_EQ(Name("step (.*)", StrCat("step ", std::string(100, 'x'))).size(), 32U);
}

TEST(Marker, ALongLineIsLookedAtFromItsBeginning) {
  EXPECT_EQ(Name("step ([0-9]+)", StrCat("step 5", std::string(1 << 20, 'x'))), "5");
  EXPECT_EQ(Name("step ([0-9]+)", StrCat(std::string(1 << 20, 'x'), "step 5")), "(none)");
}

TEST(Marker, AWrongExpressionIsRefused) {
  for (const char* wrong : {"step (", "[", "*", "a{2"}) {
    const auto marker = Marker::Parse(wrong);
    ASSERT_FALSE(marker.ok()) << wrong;
    EXPECT_EQ(marker.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(marker.status().message(), HasSubstr(StrCat("'", wrong, "' is not a regular expression")));
  }
}

TEST(Lines, EndAtLineFeedsAndCarriageReturns) {
  Lines lines;
  EXPECT_THAT(lines.Add("one\ntwo\r\nthr"), ElementsAre("one", "two"));
  EXPECT_THAT(lines.Add("ee\rfour"), ElementsAre("three"));
  EXPECT_EQ(lines.Rest(), "four");
  EXPECT_EQ(lines.Rest(), "");
}

TEST(Lines, OneThatNeverEndsIsCut) {
  Lines lines;
  size_t pieces = 0;
  for (int i = 0; i < 64; ++i) pieces += lines.Add(std::string(4096, 'x')).size();
  EXPECT_GT(pieces, 2U);
}

Reading At(int second, uint64_t sent, uint64_t received, const std::string& name = "eth0") {
  Device device{.name = name, .kind = DeviceKind::kInterface, .counts = {}};
  device.counts[Quantity::kSentBytes] = Count{.value = sent};
  device.counts[Quantity::kReceivedBytes] = Count{.value = received};
  Device idle{.name = "idle0", .kind = DeviceKind::kInterface, .counts = {}};
  idle.counts[Quantity::kSentBytes] = Count{.value = 77};
  return {.at = TimePoint{} + std::chrono::seconds(second), .devices = {device, idle}};
}

TEST(StepLog, AMarkEndsItsStep) {
  StepLog log(At(0, 1000, 0));
  log.Mark("1", At(10, 6000, 1));
  log.Mark("2", At(11, 6100, 3));
  log.Mark("3", At(13, 6300, 6));
  log.End(At(14, 6350, 6));
  ASSERT_EQ(log.steps().size(), 3U);
  EXPECT_EQ(log.steps()[0].name, "1");
  EXPECT_EQ(log.steps()[0].seconds, 10);
  EXPECT_EQ(log.steps()[0].changes[0].counts[Quantity::kSentBytes], 5000U);
  EXPECT_EQ(log.steps()[1].changes[0].counts[Quantity::kSentBytes], 100U);
  EXPECT_EQ(log.steps()[2].seconds, 2);
  EXPECT_EQ(log.rest().changes[0].counts[Quantity::kSentBytes], 50U);
  const auto summary = Summarize(log);
  ASSERT_EQ(summary.size(), 1U) << "a device that moved nothing is left out";
  EXPECT_EQ(summary[0].device, "eth0");
  EXPECT_EQ(summary[0].median_sent, 150) << "without the first step";
  EXPECT_EQ(summary[0].median_received, 2.5);
  EXPECT_EQ(summary[0].totals[Quantity::kSentBytes], 5350U);
}

TEST(StepLog, OneStepIsItsOwnMedian) {
  StepLog log(At(0, 0, 0));
  log.Mark("1", At(1, 500, 0));
  log.End(At(2, 500, 0));
  EXPECT_EQ(Summarize(log)[0].median_sent, 500);
}

TEST(StepLog, WithoutAMarkTheTotalsAreThere) {
  StepLog log(At(0, 0, 0));
  log.End(At(2, 500, 4));
  EXPECT_THAT(log.steps(), IsEmpty());
  EXPECT_EQ(Summarize(log)[0].totals[Quantity::kReceivedBytes], 4U);
}

TEST(StepLog, ADeviceThatVanishesKeepsWhatItMovedBefore) {
  StepLog log(At(0, 0, 0));
  log.Mark("1", At(1, 500, 0));
  log.Mark("2", At(2, 10, 0, "eth1"));
  log.End(At(3, 30, 0, "eth1"));
  const auto summary = Summarize(log);
  ASSERT_EQ(summary.size(), 2U);
  EXPECT_EQ(summary[0].totals[Quantity::kSentBytes], 500U);
  EXPECT_EQ(summary[1].totals[Quantity::kSentBytes], 20U);
}

}  // namespace
}  // namespace weightcast::counters
