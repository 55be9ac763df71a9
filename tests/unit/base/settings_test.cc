#include "weightcast/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

namespace weightcast {
namespace {

using ::testing::HasSubstr;

/// Nothing of ours in the environment but what a test puts there.
class SettingsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const SettingInfo& row : SettingsTable()) unsetenv(EnvironmentName(row.name).c_str());
  }
  void TearDown() override {
    for (const std::string& name : put_) unsetenv(name.c_str());
  }
  void Put(const std::string& name, const std::string& value) {
    ASSERT_EQ(setenv(name.c_str(), value.c_str(), 1), 0);
    put_.push_back(name);
  }
  static std::string Refusal(std::string_view name, std::string_view text) {
    Settings settings;
    const Status status = settings.Set(name, text);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name << " " << text;
    return status.message();
  }

 private:
  std::vector<std::string> put_;
};

TEST_F(SettingsTest, EveryDefaultIsAValueThatSetTakesAndGetGivesBack) {
  const Settings defaults;
  std::set<std::string_view> names;
  for (const SettingInfo& row : SettingsTable()) {
    Settings again;
    EXPECT_TRUE(again.Set(row.name, row.default_value).ok()) << row.name;
    EXPECT_EQ(again.Get(row.name), defaults.Get(row.name)) << row.name;
    EXPECT_TRUE(again.Set(row.name, defaults.Get(row.name)).ok()) << row.name;
    EXPECT_EQ(again.Get(row.name), defaults.Get(row.name)) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
  EXPECT_EQ(defaults.chunk, uint64_t{1} << 20);
  EXPECT_EQ(defaults.lease, std::chrono::seconds(5));
  EXPECT_EQ(defaults.window, 16);
  EXPECT_EQ(defaults.controller_timeout, Duration::zero());
}

TEST_F(SettingsTest, OverridesGoBeforeTheEnvironmentAndThatBeforeDefaults) {
  Put("WEIGHTCAST_LEASE", "2.5");
  Put("WEIGHTCAST_WINDOW", "3");
  const auto settings = Settings::From({{"window", "4"}});
  ASSERT_TRUE(settings.ok()) << settings.status().ToString();
  EXPECT_EQ(settings->lease, std::chrono::milliseconds(2500));
  EXPECT_EQ(settings->window, 4);
  EXPECT_EQ(settings->lanes, 0);
}

TEST_F(SettingsTest, AWrongValueInTheEnvironmentNamesTheVariable) {
  Put("WEIGHTCAST_CONNECT_TIMEOUT", "soon");
  const Status status = Settings::FromEnvironment().status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("WEIGHTCAST_CONNECT_TIMEOUT: setting connect_timeout is 'soon'"));
  EXPECT_THAT(status.message(), HasSubstr("allowed: a number of seconds, such as 2.5"));
}

TEST_F(SettingsTest, AnUnknownVariableIsWarnedAboutOnceAndThoseOfNoSettingAreNot) {
  Put("WEIGHTCAST_LAESE", "1");
  Put("WEIGHTCAST_TOKEN", "very secret");
  Put("WEIGHTCAST_CUDA_LIBRARY", "/opt/other/libcuda.so.1");
  for (const char* read_by_adapters :
       {"WEIGHTCAST_ENGINE", "WEIGHTCAST_VLLM_LANDING", "WEIGHTCAST_VLLM_DRAFT"}) {
    Put(read_by_adapters, "a");
  }
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Settings::FromEnvironment().ok());
  EXPECT_TRUE(Settings::FromEnvironment().ok());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("no setting is called WEIGHTCAST_LAESE"));
  EXPECT_EQ(log.find("LAESE"), log.rfind("LAESE")) << log;
  EXPECT_EQ(log.find("TOKEN"), std::string::npos) << log;
  EXPECT_EQ(log.find("CUDA"), std::string::npos) << log;
  EXPECT_EQ(log.find("ENGINE"), std::string::npos) << log;
  EXPECT_EQ(log.find("VLLM"), std::string::npos) << log;
}

TEST_F(SettingsTest, AnUnknownNameIsAnError) {
  EXPECT_EQ(Refusal("laese", "1"),
            "no setting is called 'laese'; use the name of a flag in docs/settings.md, with _ for -, such as "
            "port_range");
  EXPECT_EQ(Settings::From({{"", ""}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Settings().Get("laese"), "");
}

TEST_F(SettingsTest, WhatIsRefusedChangesNothing) {
  Settings settings;
  EXPECT_FALSE(settings.Set("chunk", "1").ok());
  EXPECT_EQ(settings.chunk, uint64_t{1} << 20);
}

TEST_F(SettingsTest, BytesHaveUnits) {
  Settings settings;
  const auto bytes = [&](std::string_view text) {
    return settings.Set("staging", text).ok() ? settings.staging : UINT64_MAX;
  };
  EXPECT_EQ(bytes("0"), 0U);
  EXPECT_EQ(bytes("12345"), 12345U);
  EXPECT_EQ(bytes("3k"), 3072U);
  EXPECT_EQ(bytes("2M"), 2U << 20);
  EXPECT_EQ(bytes("5G"), uint64_t{5} << 30);
  EXPECT_EQ(bytes("1T"), uint64_t{1} << 40);
  EXPECT_EQ(bytes("17179869183G"), uint64_t{17179869183} << 30);
  for (const char* wrong : {"", "K", "1.5G", "-1", "1 G", "1GB", "17179869184G", "18446744073709551616"}) {
    EXPECT_THAT(Refusal("staging", wrong), HasSubstr("a number of bytes, K, M or G allowed")) << wrong;
  }
}

TEST_F(SettingsTest, SecondsAreNumbersAboveZero) {
  Settings settings;
  EXPECT_TRUE(settings.Set("lease", "0.001").ok());
  EXPECT_EQ(settings.lease, std::chrono::milliseconds(1));
  EXPECT_TRUE(settings.Set("lease", "1e9").ok());
  EXPECT_EQ(settings.lease, std::chrono::seconds(1'000'000'000));
  for (const char* wrong : {"", "5s", "-1", "nan", "inf", "1000000001"}) {
    EXPECT_THAT(Refusal("lease", wrong), HasSubstr("a number of seconds")) << wrong;
  }
  EXPECT_THAT(Refusal("lease", "0"), HasSubstr("more than 0 seconds"));
  EXPECT_THAT(Refusal("lease", "1e-10"), HasSubstr("more than 0 seconds"));
  EXPECT_TRUE(settings.Set("controller_timeout", "0").ok()) << "twice the lease";
}

TEST_F(SettingsTest, WhatIsAllowedIsSaid) {
  const std::vector<std::array<const char*, 3>> cases = {
      {"log_level", "loud", "debug, info, warning, error or off"},
      {"policy", "some", "all or each"},
      {"strategy", "best", "balanced or greedy"},
      {"chunk", "4095", "4K to 64M"},
      {"chunk", "65M", "4K to 64M"},
      {"window", "0", "1 to 4096"},
      {"window", "4097", "1 to 4096"},
      {"lanes", "65", "0 to 64"},
      {"lanes", "-1", "an integer, 0 or more"},
      {"lanes", "2.0", "an integer, 0 or more"},
      {"checksum", "2", "0 or 1"},
      {"gpu", "on", "auto or off"},
      {"pinned", "1023K", "1M or more"},
      {"copy_streams", "0", "1 to 8"},
      {"copy_streams", "9", "1 to 8"},
      {"copy_blocks", "0", "1 to 1024"},
      {"copy_blocks", "1025", "1 to 1024"},
      {"traffic_class", "256", "af31 to af33"},
      {"traffic_class", "gold", "0 to 255 (the DSCP times four)"},
      {"port_range", "9-8", "low-high, such as 29800-29899"},
      {"controller", "host", "HOST:PORT"},
      {"job", "", "a name"},
  };
  for (const auto& [name, text, allowed] : cases) {
    const std::string message = Refusal(name, text);
    EXPECT_THAT(message, HasSubstr(std::string("setting ") + name + " is '" + text + "'"));
    EXPECT_THAT(message, HasSubstr(allowed));
  }
  Settings settings;
  for (const auto& [name, text] : std::vector<std::pair<const char*, const char*>>{{"chunk", "4K"},
                                                                                   {"chunk", "64M"},
                                                                                   {"window", "1"},
                                                                                   {"window", "4096"},
                                                                                   {"lanes", "64"},
                                                                                   {"gpu", "off"},
                                                                                   {"pinned", "1M"},
                                                                                   {"copy_streams", "1"},
                                                                                   {"copy_streams", "8"}}) {
    EXPECT_TRUE(settings.Set(name, text).ok()) << name << " " << text;
  }
}

}  // namespace
}  // namespace weightcast
