#include "stream/client_hello.h"

#include <gtest/gtest.h>

#include "fixture.h"

namespace weightcast::stream {
namespace {

std::string Hello() { return ClientHelloOf(KeysOf(TokenOf({Role::kInference, "a"}))); }

TEST(ClientHello, OfOurClientIsRead) {
  const auto hello = ReadClientHello(Hello());
  ASSERT_TRUE(hello.ok()) << hello.status().ToString();
  ASSERT_TRUE(*hello);
  EXPECT_TRUE((*hello)->tls13);
  EXPECT_EQ((*hello)->protocols, std::vector<std::string>{"weightcast/7"});
  EXPECT_EQ((*hello)->identity, KeysOf(TokenOf({Role::kInference, "a"})).identity);
}

TEST(ClientHello, OfTheLongestEngineFits) {
  const std::string bytes =
      ClientHelloOf(KeysOf(TokenOf({Role::kInference, std::string(kMostEngineBytes, 'e')})));
  EXPECT_LT(bytes.size(), kMostHelloBytes);
  const auto hello = ReadClientHello(bytes);
  EXPECT_TRUE(hello.ok() && *hello);
}

TEST(ClientHello, IsNotJudgedBeforeItIsWhole) {
  const std::string bytes = Hello();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto hello = ReadClientHello(std::string_view(bytes).substr(0, size));
    ASSERT_TRUE(hello.ok()) << size << ": " << hello.status().ToString();
    EXPECT_FALSE(*hello);
  }
  EXPECT_FALSE(ReadClientHello(bytes + "x").ok());
}

TEST(ClientHello, OfMoreThanTheLimitIsRefusedByItsHead) {
  std::string bytes = Hello();
  bytes[3] = '\x04';  // A record of more than 1,024 bytes.
  EXPECT_FALSE(ReadClientHello(bytes.substr(0, 5)).ok());
  EXPECT_FALSE(ReadClientHello("GET / HTTP/1.1\r\n").ok());
  EXPECT_FALSE(ReadClientHello("\x17").ok());
}

TEST(ClientHello, WithAnyByteChangedIsReadOrRefused) {
  const std::string bytes = Hello();
  size_t refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0xff);
    const auto hello = ReadClientHello(changed);
    if (!hello.ok()) ++refused;
    if (hello.ok() && *hello) {
      EXPECT_LE((*hello)->identity.size(), bytes.size());
    }
  }
  EXPECT_GT(refused, 40U);
}

TEST(Judge, SaysWhatIsWrong) {
  const ServerKeys keys(Master(), kVersion);
  const auto judge = [&](const std::string& bytes) { return keys.Judge(**ReadClientHello(bytes)); };
  const auto good = judge(Hello());
  ASSERT_TRUE(good.identity);
  EXPECT_EQ(good.identity->member, (Member{Role::kInference, "a"}));
  EXPECT_EQ(keys.KeyOf(*good.identity), KeysOf(TokenOf({Role::kInference, "a"})).key);

  const auto version =
      judge(ClientHelloOf(*ClientKeysOf(TokenOf({Role::kTrainer}), Purpose::kControl, 8), 8));
  EXPECT_FALSE(version.identity);
  EXPECT_EQ(version.alert, Alert::kNoProtocol);
  EXPECT_NE(version.reason.find("protocol version 8, this controller protocol version 7"), std::string::npos);

  const auto job = judge(ClientHelloOf(KeysOf(TokenOf({Role::kTrainer}, kOtherMaster))));
  EXPECT_FALSE(job.identity);
  EXPECT_EQ(job.alert, Alert::kUnknownIdentity);

  ClientKeys peer = KeysOf(TokenOf({Role::kTrainer}));
  peer.identity = IdentityText({kVersion, {Role::kPeer}, JobHash(peer.controller)});
  EXPECT_EQ(judge(ClientHelloOf(peer)).alert, Alert::kUnknownIdentity);
}

TEST(Judge, RefusesWhoOffersNoKey) {
  const ServerKeys keys(Master(), kVersion);
  const auto judgement = keys.Judge({.protocols = {ProtocolName(kVersion)}, .identity = "", .tls13 = true});
  EXPECT_FALSE(judgement.identity);
  EXPECT_FALSE(keys.Judge({.protocols = {ProtocolName(kVersion)}, .identity = "x", .tls13 = false}).identity);
}

TEST(Http2, IsRecognised) {
  EXPECT_TRUE(IsHttp2Client("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore"));
  EXPECT_TRUE(IsHttp2Client("PRI"));
  EXPECT_FALSE(IsHttp2Client(""));
  EXPECT_FALSE(IsHttp2Client(Hello()));
  EXPECT_TRUE(IsHttp2Server(std::string_view("\0\0\x06\4\0\0\0\0\0xxxxxx", 15)));
  EXPECT_FALSE(IsHttp2Server("\x16\x03\x03"));
}

}  // namespace
}  // namespace weightcast::stream
