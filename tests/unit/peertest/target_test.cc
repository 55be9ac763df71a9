#include "peertest/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"

namespace weightcast::peertest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Parsed(const char* text) {
  const auto place = ParseTarget(text);
  return place.ok() ? TargetText(*place) : place.status().message();
}

TEST(Target, IsANameOrAnAddressWithAPortOrWithout) {
  EXPECT_EQ(Parsed("node1"), "node1:29751");
  EXPECT_EQ(Parsed("node1:80"), "node1:80");
  EXPECT_EQ(Parsed("10.0.0.1"), "10.0.0.1:29751");
  EXPECT_EQ(Parsed("fd00::1"), "[fd00::1]:29751");
  EXPECT_EQ(Parsed("[fd00::1]"), "[fd00::1]:29751");
  EXPECT_EQ(Parsed("[fd00::1]:80"), "[fd00::1]:80");
}

TEST(Target, RefusesWhatIsNone) {
  for (const char* text : {"", ":80", "node1:", "node1:0", "node1:70000", "node1:x", "[]", "[fd00::1",
                           "a:]:b", "[a]b]", "a[", "a b", "a,b", "http://node1", "node1\n"})
    EXPECT_THAT(Parsed(text), HasSubstr("is not the name or address of a host")) << text;
  EXPECT_THAT(Parsed(std::string(300, 'a').c_str()), HasSubstr("is not the name or address of a host"));
}

TEST(Target, WhatIsTakenIsTakenAgain) {
  for (const std::string& host : {std::string(253, 'a'), StrCat(":", std::string(251, 'a'), ":")}) {
    const auto place = ParseTarget(host);
    ASSERT_TRUE(place.ok());
    EXPECT_TRUE(ParseTarget(TargetText(*place)).ok());
    EXPECT_FALSE(ParseTarget(StrCat("a", host)).ok()) << "longer than a name of DNS";
  }
}

TEST(HostsFile, HasAHostInEachLine) {
  const auto hosts = ParseHostsFile("# rack 1\nnode1\n\n  node2:80  # spare\r\n[fd00::3]:81");
  ASSERT_TRUE(hosts.ok()) << hosts.status().message();
  EXPECT_THAT(*hosts, ElementsAre("node1:29751", "node2:80", "[fd00::3]:81"));
}

TEST(HostsFile, NamesTheLineThatIsWrong) {
  EXPECT_THAT(ParseHostsFile("node1\nno de\nnode3\n").status().message(), HasSubstr("line 2: 'no de'"));
  EXPECT_THAT(ParseHostsFile("node1\nnode2\nnode1:29751\n").status().message(), HasSubstr("line 3"));
  EXPECT_THAT(ParseHostsFile("node1\n").status().message(), HasSubstr("fewer than two"));
  EXPECT_THAT(ParseHostsFile("").status().message(), HasSubstr("fewer than two"));
  std::string many;
  for (size_t i = 0; i <= kMostHosts; ++i) many += StrCat("node", i, "\n");
  EXPECT_THAT(ParseHostsFile(many).status().message(), HasSubstr("more than 256"));
}

}  // namespace
}  // namespace weightcast::peertest
