#include "base/traffic_class.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/strings.h"

namespace weightcast {
namespace {

using ::testing::HasSubstr;

/// -1: none; -2: refused.
int ByteOf(std::string_view text) {
  const auto parsed = ParseTrafficClass(text);
  if (!parsed.ok()) return -2;
  return *parsed ? **parsed : -1;
}

TEST(TrafficClass, NamesAreThoseOfTheRfcs) {
  // RFC 2474, 2597, 3246 and 8622, as the byte.
  for (const auto& [name, byte] : std::vector<std::pair<std::string, int>>{
           {"cs0", 0},     {"cs1", 0x20},  {"cs2", 0x40},  {"cs3", 0x60},  {"cs4", 0x80},  {"cs5", 0xa0},
           {"cs6", 0xc0},  {"cs7", 0xe0},  {"af11", 0x28}, {"af12", 0x30}, {"af13", 0x38}, {"af21", 0x48},
           {"af22", 0x50}, {"af23", 0x58}, {"af31", 0x68}, {"af32", 0x70}, {"af33", 0x78}, {"af41", 0x88},
           {"af42", 0x90}, {"af43", 0x98}, {"ef", 0xb8},   {"le", 0x04},   {"AF31", 0x68}, {"Ef", 0xb8}}) {
    EXPECT_EQ(ByteOf(name), byte) << name;
  }
}

TEST(TrafficClass, NumbersAreTheWholeByte) {
  for (int byte = 0; byte <= 255; ++byte) EXPECT_EQ(ByteOf(StrCat(byte)), byte);
}

TEST(TrafficClass, NothingMeansNone) { EXPECT_EQ(ByteOf(""), -1); }

TEST(TrafficClass, OthersAreRefusedWithTheListOfNames) {
  for (const char* wrong :
       {"256",  "-1",   "1.0",  "0x68", " 104",  "104 ", "cs", "cs8",    "cs10",    "af",
        "af10", "af14", "af51", "af01", "af311", "efx",  "be", "dscp26", "af31,ef", "cs/"}) {
    const auto parsed = ParseTrafficClass(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr(StrCat("'", wrong, "'")));
    EXPECT_THAT(parsed.status().message(), HasSubstr("cs0 to cs7, af11 to af13"));
  }
}

}  // namespace
}  // namespace weightcast
