#include <gtest/gtest.h>

#include "transport/tcp/greeting.h"
#include "transport/tcp/offer.h"

namespace weightcast::transport::tcp {
namespace {

Answer ExampleAnswer() {
  Answer answer{.cookie = NewCookie(), .lanes = 3, .depth = 256, .spread = true, .addresses = {}};
  for (const char* text : {"10.0.0.1:80", "[::1]:443", "127.0.0.1:9"})
    answer.addresses.push_back(*SocketAddress::Parse(text));
  return answer;
}

TEST(TcpOfferTest, ComesBackAsItWas) {
  const Offer offer{.cookie = NewCookie(), .lanes = 64, .depth = 4096, .boot_id = "abc"};
  const auto parsed = ParseOffer(EncodeOffer(offer));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->cookie, offer.cookie);
  EXPECT_EQ(parsed->lanes, 64);
  EXPECT_EQ(parsed->depth, 4096);
  EXPECT_EQ(parsed->boot_id, "abc");
}

TEST(TcpOfferTest, AnswersComeBackAsTheyWere) {
  const Answer answer = ExampleAnswer();
  const auto parsed = ParseAnswer(EncodeAnswer(answer));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->cookie, answer.cookie);
  EXPECT_TRUE(parsed->spread);
  ASSERT_EQ(parsed->addresses.size(), 3U);
  EXPECT_EQ(parsed->addresses[1].ToString(), "[::1]:443");
}

TEST(TcpOfferTest, ALinkThatIsUnknownHereSpoilsNoOtherAddress) {
  Answer answer = ExampleAnswer();
  const auto link_local = SocketAddress::Parse("[fe80::1%lo]:80");
  ASSERT_TRUE(link_local.ok()) << link_local.status().ToString();
  answer.addresses.push_back(*link_local);
  std::string blob = EncodeAnswer(answer);
  blob.replace(blob.find("%lo"), 3, "%zz");
  const auto parsed = ParseAnswer(blob);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  ASSERT_GE(parsed->addresses.size(), 3U);
  EXPECT_EQ(parsed->addresses[2].ToString(), "127.0.0.1:9");
}

TEST(TcpOfferTest, CutsAndAdditionsAreRefused) {
  const std::string offer = EncodeOffer({NewCookie(), 1, 1, "boot"});
  const std::string answer = EncodeAnswer(ExampleAnswer());
  for (size_t cut = 0; cut < offer.size(); ++cut) EXPECT_FALSE(ParseOffer(offer.substr(0, cut)).ok());
  for (size_t cut = 0; cut < answer.size(); ++cut) EXPECT_FALSE(ParseAnswer(answer.substr(0, cut)).ok());
  EXPECT_FALSE(ParseOffer(offer + '\0').ok());
  EXPECT_FALSE(ParseAnswer(answer + '\0').ok());
}

TEST(TcpOfferTest, WhatIsOutOfRangeIsRefused) {
  EXPECT_FALSE(ParseOffer(EncodeOffer({NewCookie(), 0, 1, ""})).ok());
  EXPECT_FALSE(ParseOffer(EncodeOffer({NewCookie(), 65, 1, ""})).ok());
  EXPECT_FALSE(ParseOffer(EncodeOffer({NewCookie(), 1, 0, ""})).ok());
  EXPECT_FALSE(ParseOffer(EncodeOffer({NewCookie(), 1, 4097, ""})).ok());
  Answer answer = ExampleAnswer();
  answer.addresses = {*SocketAddress::Parse("@abstract")};
  EXPECT_FALSE(ParseAnswer(EncodeAnswer(answer)).ok());
  answer.addresses = {*SocketAddress::Parse("10.0.0.1:0")};
  EXPECT_FALSE(ParseAnswer(EncodeAnswer(answer)).ok());
}

TEST(TcpOfferTest, AnotherVersionSaysSo) {
  std::string offer = EncodeOffer({NewCookie(), 1, 1, "boot"});
  offer[0] = 2;
  const auto parsed = ParseOffer(offer);
  EXPECT_EQ(parsed.status().code(), Code::kProtocol);
  EXPECT_NE(parsed.status().message().find("version 2"), std::string::npos) << parsed.status().message();
}

TEST(TcpGreetingTest, ComesBackAsItWasAndNothingElseIsTaken) {
  const Greeting greeting{Greeting::Kind::kWelcome, 63, 5, NewCookie()};
  const GreetingBytes bytes = EncodeGreeting(greeting);
  const auto parsed = ParseGreeting(bytes);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->kind, greeting.kind);
  EXPECT_EQ(parsed->lane, 63);
  EXPECT_EQ(parsed->generation, 5U);
  EXPECT_EQ(parsed->cookie, greeting.cookie);
  for (const size_t index : {0, 1, 2, 3, 4, 5, 6, 7, 10, 11}) {
    GreetingBytes damaged = bytes;
    damaged[index] ^= std::byte{0x80};
    EXPECT_FALSE(ParseGreeting(damaged).has_value()) << index;
  }
}

}  // namespace
}  // namespace weightcast::transport::tcp
