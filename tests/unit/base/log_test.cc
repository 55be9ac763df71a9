#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace weightcast {
namespace {

using namespace std::chrono_literals;

TEST(OncePerSecond, LetsOneThroughAndCountsTheRest) {
  OncePerSecond limit;
  const TimePoint start = Clock::now();
  EXPECT_EQ(limit.Due(start), 0);
  EXPECT_FALSE(limit.Due(start));
  EXPECT_FALSE(limit.Due(start + 999ms));
  EXPECT_EQ(limit.Due(start + 1s), 2);
  EXPECT_FALSE(limit.Due(start + 1999ms));
  EXPECT_EQ(limit.Due(start + 10s), 1);
}

TEST(OncePerSecond, CountsWhatManyThreadsAsk) {
  OncePerSecond limit;
  const TimePoint start = Clock::now();
  std::atomic<int> through{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) through += limit.Due(start) ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(through, 1);
  EXPECT_EQ(limit.Due(start + 1s), 3999);
}

TEST(Log, LeavesOutWhatComesTooOften) {
  testing::internal::CaptureStderr();
  const TimePoint deadline = Clock::now() + 5s;
  const auto say = [](int number) { WC_LOG_LIMITED(kError, "refused number ", number); };
  for (int i = 0; i < 1000; ++i) say(i);
  std::string printed;
  // The next one that goes through tells of the others.
  for (int i = 1000; printed.find("more like") == std::string::npos && Clock::now() < deadline; ++i) {
    say(i);
    std::this_thread::sleep_for(10ms);
    printed += testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
  }
  printed += testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, testing::ContainsRegex("refused number 0\n"));
  EXPECT_THAT(printed,
              testing::ContainsRegex("refused number 1[0-9]+ \\([0-9]+ more like this one were left out\\)"));
  EXPECT_LE(std::count(printed.begin(), printed.end(), '\n'), 2);
}

}  // namespace
}  // namespace weightcast
