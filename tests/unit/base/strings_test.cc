#include "base/strings.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <limits>

#include "weightcast/clock.h"

namespace weightcast {
namespace {

TEST(Strings, StrCatWritesEveryKind) {
  EXPECT_EQ(StrCat(), "");
  EXPECT_EQ(StrCat("a", 'b', std::string("c"), std::string_view("d"), true, false), "abcdtruefalse");
  EXPECT_EQ(StrCat(std::numeric_limits<int64_t>::min(), " ", std::numeric_limits<uint64_t>::max()),
            "-9223372036854775808 18446744073709551615");
  EXPECT_EQ(StrCat(0.5, " ", 1e9, " ", 1.0 / 3), "0.5 1e+09 0.333333");
}

TEST(Strings, StrCatKeepsSignsAndZeroBytes) {
  EXPECT_EQ(StrCat(int8_t{-1}, ' ', uint8_t{255}, ' ', -1, ' ', -0.5), "-1 255 -1 -0.5");
  EXPECT_EQ(StrCat(std::string_view("a\0b", 3), '\0', std::string_view(), '\xff'),
            std::string_view("a\0b\0\xff", 5));
}

TEST(Strings, ParseNumberTakesAllOrNothing) {
  EXPECT_EQ(ParseNumber<uint8_t>("255"), 255);
  EXPECT_EQ(ParseNumber<int8_t>("-128"), -128);
  EXPECT_EQ(ParseNumber<uint64_t>("18446744073709551615"), UINT64_MAX);
  for (const char* text : {"", " 1", "1 ", "+1", "0x1", "1.0", "256", "-1"}) {
    EXPECT_FALSE(ParseNumber<uint8_t>(text).has_value()) << text;
  }
}

TEST(Strings, HumanBytesKeepsThreeDigits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(1000), "1.00 KB");
  EXPECT_EQ(HumanBytes(15'360), "15.4 KB");
  EXPECT_EQ(HumanBytes(640'000), "640 KB");
  EXPECT_EQ(HumanBytes(1.5e9), "1.50 GB");
  EXPECT_EQ(HumanBytes(5e18), "5000 PB");
}

TEST(Strings, ToHexShowsEveryByte) {
  EXPECT_EQ(ToHex(""), "");
  EXPECT_EQ(ToHex(std::string_view("\x00\x7f\x80\xff", 4)), "007f80ff");
}

TEST(Strings, ErrnoTextHasWordsAndNumber) { EXPECT_EQ(ErrnoText(ECONNREFUSED), "Connection refused (111)"); }

TEST(Clock, SecondsGoBothWays) {
  EXPECT_EQ(FromSeconds(2.5), std::chrono::milliseconds(2500));
  EXPECT_EQ(FromSeconds(0), Duration::zero());
  EXPECT_DOUBLE_EQ(Seconds(std::chrono::microseconds(1)), 1e-6);
  EXPECT_DOUBLE_EQ(Seconds(FromSeconds(1e9)), 1e9);
}

}  // namespace
}  // namespace weightcast
