#include "doctor/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>

#include "doctor/gather.h"

namespace weightcast::doctor {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(Probe, GivesItsText) {
  const std::string large(1 << 20, 'x');  // More than a pipe holds.
  const auto results = RunProbes({{"a", seconds(20), [] { return std::string("one"); }},
                                  {"b", seconds(20), [&] { return large; }},
                                  {"c", seconds(20), [] { return std::string(); }}});
  EXPECT_EQ(*results[0], "one");
  EXPECT_EQ(*results[1], large);
  EXPECT_EQ(*results[2], "");
}

TEST(Probe, DoesNotStopTheOthers) {
  const TimePoint begin = Clock::now();
  const auto hang = [] {
    pause();
    return std::string();
  };
  const auto crash = []() -> std::string {
    raise(SIGKILL);
    return "";
  };
  const auto results = RunProbes(
      {{"hangs", milliseconds(200), hang},
       {"hangs too", milliseconds(200), hang},
       {"crashes", seconds(20), crash},
       {"throws", seconds(20), []() -> std::string { throw 1; }},
       {"works", seconds(20), [] { return std::string("fine"); }},
       {"says why", seconds(20), []() -> std::string { throw std::runtime_error("no such device"); }}});
  EXPECT_LT(Clock::now() - begin, seconds(15));
  EXPECT_EQ(results[0].status().code(), Code::kTimedOut);
  EXPECT_THAT(results[0].status().message(), HasSubstr("no answer within 0.2 s"));
  EXPECT_EQ(results[1].status().code(), Code::kTimedOut);
  EXPECT_THAT(results[2].status().message(), HasSubstr("signal 9"));
  EXPECT_FALSE(results[3].ok());
  EXPECT_EQ(*results[4], "fine");
  EXPECT_THAT(results[5].status().message(), HasSubstr("failed: no such device"));
}

TEST(Gather, KeepsWhatTheOtherProbesSay) {
  Sources sources;
  sources.root = "/nothing/here";
  sources.descriptors = 77;
  sources.host_name = "127.0.0.1";
  sources.verbs = []() -> Result<std::shared_ptr<drivers::Ibverbs>> {
    raise(SIGKILL);
    return Status(Code::kInternal, "");
  };
  sources.cuda = [](const Settings&) { return device::Inventory{}; };
  const Facts facts = Gather(sources);
  EXPECT_EQ(facts.limits.descriptors, 77);
  ASSERT_TRUE(facts.missed.contains("verbs"));
  EXPECT_THAT(facts.missed.at("verbs"), HasSubstr("signal 9"));
}

}  // namespace
}  // namespace weightcast::doctor
