#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace weightcast {
namespace {

TEST(JsonTest, OrderedMembersStayInTheOrderOfWriting) {
  EXPECT_EQ(JsonText(nlohmann::ordered_json{{"b", 1}, {"a", 2}}), R"({"b":1,"a":2})");
  EXPECT_EQ(JsonText(nlohmann::json{{"b", 1}, {"a", 2}}), R"({"a":2,"b":1})");
  EXPECT_EQ(JsonText(nlohmann::json{{"a", 2}}, 2), "{\n  \"a\": 2\n}");
}

TEST(JsonTest, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(JsonText(nlohmann::json("a\xff")), "\"a\xef\xbf\xbd\"");
  EXPECT_EQ(JsonText(nlohmann::json("\xc3\xa9"), -1, JsonCharacters::kAscii), "\"\\u00e9\"");
}

TEST(JsonTest, WhatIsNotJsonIsDiscarded) {
  EXPECT_EQ(ParseJson("[1]"), nlohmann::json({1}));
  for (const char* text : {"", "{", "[1] 2", "{\"a\":}", "\"\xff\""})
    EXPECT_TRUE(ParseJson(text).is_discarded()) << text;
}

}  // namespace
}  // namespace weightcast
