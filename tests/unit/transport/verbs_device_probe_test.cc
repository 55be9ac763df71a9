#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "fake_ibverbs/fabric.h"
#include "transport/verbs/device_probe.h"

namespace weightcast::transport::verbs {
namespace {

using ::testing::HasSubstr;

class DeviceProbeTest : public ::testing::Test {
 protected:
  std::unique_ptr<DeviceProbe> Open(std::function<bool()> interrupted = {}) {
    auto opened = DeviceProbe::Open(fabric_.NewHost({}), {.interrupted = std::move(interrupted)});
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(*opened) : nullptr;
  }

  fake::Fabric fabric_;
};

TEST_F(DeviceProbeTest, PingsAgainAndAgain) {
  const auto here = Open();
  const auto there = Open();
  ASSERT_TRUE(here->Connect(there->place()).ok());
  ASSERT_TRUE(there->Connect(here->place()).ok());
  for (const uint32_t count : {1U, 30U, 100U}) {  // More than are under way at once.
    Status ponged;
    std::thread other([&] { ponged = there->Pong(count); });
    const auto times = here->Ping(count);
    other.join();
    ASSERT_TRUE(times.ok()) << times.status().message();
    EXPECT_TRUE(ponged.ok()) << ponged.message();
    ASSERT_EQ(times->size(), count);
    for (const double seconds : *times) EXPECT_GT(seconds, 0);
  }
}

TEST_F(DeviceProbeTest, EndsWhereNobodyAnswers) {
  const TimePoint end = In(std::chrono::milliseconds(50));
  const auto here = Open([end] { return Clock::now() > end; });
  const auto there = Open();
  ASSERT_TRUE(here->Connect(there->place()).ok());
  ASSERT_TRUE(there->Connect(here->place()).ok());
  EXPECT_EQ(here->Ping(1).status().code(), Code::kCancelled);
}

TEST_F(DeviceProbeTest, SaysWhatBreaksTheQueuePair) {
  const auto here = Open();
  auto there = Open();
  ASSERT_TRUE(here->Connect(there->place()).ok());
  ASSERT_TRUE(there->Connect(here->place()).ok());
  there.reset();
  const auto times = here->Ping(1);
  EXPECT_THAT(times.status().message(), HasSubstr("check that the peer runs"));
}

TEST_F(DeviceProbeTest, RefusesPlacesThatAreNone) {
  const auto here = Open();
  const auto there = Open();
  const std::string place = there->place();
  for (size_t length = 0; length < place.size(); ++length)
    EXPECT_EQ(here->Connect(place.substr(0, length)).code(), Code::kProtocol) << length;
  EXPECT_EQ(here->Connect(place + "x").code(), Code::kProtocol);
  EXPECT_TRUE(here->Connect(place).ok());
}

TEST_F(DeviceProbeTest, SaysWhichSettingLeavesNoDevice) {
  Settings settings;
  settings.nics = "mlx5_9";
  const auto opened = DeviceProbe::Open(fabric_.NewHost({}), {.settings = settings});
  EXPECT_THAT(opened.status().message(), HasSubstr("the setting nics, mlx5_9"));
}

}  // namespace
}  // namespace weightcast::transport::verbs
