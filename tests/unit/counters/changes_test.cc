#include "counters/changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weightcast::counters {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::optional<uint64_t> From(uint64_t before, uint64_t after, uint64_t unit = 1) {
  return Between({.value = before, .unit = unit}, {.value = after, .unit = unit});
}

TEST(Between, CountsInUnits) {
  EXPECT_EQ(From(5, 5), 0U);
  EXPECT_EQ(From(5, 12), 7U);
  EXPECT_EQ(From(5, 12, 4), 28U);
}

TEST(Between, A32BitCounterWraps) {
  EXPECT_EQ(From(0xfffffff0, 0x10), 0x20U);
  EXPECT_EQ(From(0xfffffff0, 0x10, 4), 0x80U);
  EXPECT_EQ(From(0xffffffff, 0), 1U);
}

TEST(Between, A64BitCounterWraps) { EXPECT_EQ(From(0xfffffffffffffff0, 0x10), 0x20U); }

TEST(Between, OneThatBeganAgainIsUnknown) {
  EXPECT_EQ(From(1000, 10), std::nullopt);
  EXPECT_EQ(From(0x7fffffff, 0), std::nullopt);
  EXPECT_EQ(From(uint64_t{1} << 40, 10), std::nullopt);
  EXPECT_EQ(From(0xf0000000, 0xe0000000), std::nullopt) << "half a range back is no wrap";
}

Device Interface(const std::string& name, uint64_t sent, DeviceKind kind = DeviceKind::kInterface) {
  Device device{.name = name, .kind = kind, .counts = {}};
  device.counts[Quantity::kSentBytes] = Count{.value = sent};
  return device;
}

TEST(Changes, AreOfDevicesThatBothReadingsHave) {
  const Reading before{.at = {}, .devices = {Interface("eth0", 10), Interface("eth1", 10)}};
  const Reading after{.at = {}, .devices = {Interface("eth0", 25), Interface("eth2", 99)}};
  const auto changes = Changes(before, after);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].device, "eth0");
  EXPECT_EQ(changes[0].counts[Quantity::kSentBytes], 15U);
  EXPECT_EQ(changes[0].counts[Quantity::kReceivedBytes], std::nullopt);
  EXPECT_THAT(Gone(before, after), ElementsAre("eth1"));
  EXPECT_THAT(Gone(after, after), IsEmpty());
}

TEST(Changes, NamesAreOfTheirKind) {
  const Reading before{.at = {}, .devices = {Interface("x", 10), Interface("x", 100, DeviceKind::kRdma)}};
  const Reading after{.at = {}, .devices = {Interface("x", 11), Interface("x", 102, DeviceKind::kRdma)}};
  const auto changes = Changes(before, after);
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].counts[Quantity::kSentBytes], 1U);
  EXPECT_EQ(changes[1].counts[Quantity::kSentBytes], 2U);
}

TEST(Changes, ACounterThatVanishesOrBeginsAgainIsUnknownAndSaid) {
  Reading before{.at = {}, .devices = {Interface("eth0", 1000), Interface("eth1", 5)}};
  Reading after{.at = {}, .devices = {Interface("eth0", 10), Interface("eth1", 6)}};
  after.devices[1].counts[Quantity::kSentBytes] = std::nullopt;
  const auto changes = Changes(before, after);
  EXPECT_EQ(changes[0].counts[Quantity::kSentBytes], std::nullopt);
  EXPECT_EQ(changes[1].counts[Quantity::kSentBytes], std::nullopt);
  EXPECT_THAT(BeganAgain(before, after), ElementsAre("eth0"));
}

}  // namespace
}  // namespace weightcast::counters
