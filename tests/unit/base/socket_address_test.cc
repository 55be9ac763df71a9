#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/socket.h"

namespace weightcast {
namespace {

using ::testing::HasSubstr;

TEST(SocketAddress, ComesBackAsItWasWritten) {
  for (const char* text : {"10.0.0.1:80", "0.0.0.0:0", "255.255.255.255:65535", "[::1]:29750", "[::]:0",
                           "[2001:db8::2]:1", "@name", "@"}) {
    const auto address = SocketAddress::Parse(text);
    ASSERT_TRUE(address.ok()) << text << address.status().ToString();
    EXPECT_EQ(address->ToString(), text);
  }
}

TEST(SocketAddress, OnlyNumbersAreAddresses) {
  for (const char* text : {"", ":", ":80", "10.0.0.1", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1",
                           "10.0.0.256:1", "localhost:80", "::1:80", "[::1]", "[::1:80", "[::1]x:80"}) {
    EXPECT_EQ(SocketAddress::Parse(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(SocketAddress, AbstractNamesAreBounded) {
  // 107 characters and the zero in front.
  EXPECT_TRUE(SocketAddress::Parse("@" + std::string(107, 'x')).ok());
  EXPECT_FALSE(SocketAddress::Parse("@" + std::string(108, 'x')).ok());
}

TEST(SocketAddress, KnowsLoopback) {
  for (const char* text : {"127.0.0.1:1", "127.255.0.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "@name"}) {
    EXPECT_TRUE(SocketAddress::Parse(text)->IsLoopback()) << text;
  }
  for (const char* text : {"128.0.0.1:1", "0.0.0.0:1", "[::]:1", "[::ffff:10.0.0.1]:1", "[::2]:1"}) {
    EXPECT_FALSE(SocketAddress::Parse(text)->IsLoopback()) << text;
  }
}

TEST(SocketAddress, ThePortCanBeChanged) {
  for (const char* text : {"10.0.0.1:80", "[::1]:80"}) {
    auto address = *SocketAddress::Parse(text);
    address.set_port(65535);
    EXPECT_EQ(address.port(), 65535);
    EXPECT_THAT(address.ToString(), HasSubstr(":65535"));
  }
  auto name = *SocketAddress::Parse("@name");
  name.set_port(5);
  EXPECT_EQ(name.port(), 0);
  EXPECT_EQ(name.ToString(), "@name");
}

TEST(HostPort, SplitsNamesAndAddresses) {
  EXPECT_EQ(ParseHostPort("node-7.example:29750")->host, "node-7.example");
  EXPECT_EQ(ParseHostPort("node-7.example:29750")->port, 29750);
  EXPECT_EQ(ParseHostPort("[fe80::1%eth0]:1")->host, "fe80::1%eth0");
  for (const char* text : {"", "host", "host:", ":1", "host:port", "host:65536", "host: 1", "[::1:2"}) {
    EXPECT_THAT(ParseHostPort(text).status().message(), HasSubstr("is not HOST:PORT")) << text;
  }
  EXPECT_THAT(ParseHostPort("::1:80").status().message(), HasSubstr("write [::1]:80"));
}

TEST(ParseOfPeer, TheScopeOfAPeerIsNotOurs) {
  for (const char* text : {"10.0.0.1:80", "[2001:db8::2]:1"}) {
    const auto found = ParseOfPeer(text);
    ASSERT_TRUE(found.ok() && found->size() == 1) << text;
    EXPECT_EQ(found->front().ToString(), text);
  }
  for (const char* text : {"", "@name", "@a%b", "host:1", "[fe80::1%eth0", "10.0.0.1%eth0:1"}) {
    EXPECT_EQ(ParseOfPeer(text).status().code(), Code::kInvalidArgument) << text;
  }
  const auto found = ParseOfPeer("[fe80::1%no-such-link]:80");
  if (!found.ok()) {  // No interface here has a link.
    EXPECT_EQ(found.status().code(), Code::kUnavailable);
    return;
  }
  for (const SocketAddress& address : *found) {
    EXPECT_TRUE(address.IsLinkLocal());
    EXPECT_EQ(address.port(), 80);
    EXPECT_THAT(address.ToString(), HasSubstr("fe80::1%"));
    const auto first = ParseOfPeer(address.ToString());
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(first->front().ToString(), address.ToString()) << "the link of this name comes first";
    EXPECT_EQ(first->size(), found->size());
  }
}

TEST(PortRange, IsLowToHigh) {
  const auto range = [](std::string_view text) {
    const auto parsed = ParsePortRange(text);
    return parsed.ok() ? std::pair<int, int>(parsed->low, parsed->high) : std::pair(-1, -1);
  };
  EXPECT_EQ(range(""), std::pair(0, 0));
  EXPECT_EQ(range("29800-29899"), std::pair(29800, 29899));
  EXPECT_EQ(range("5"), std::pair(5, 5));
  EXPECT_EQ(range("1-65535"), std::pair(1, 65535));
  for (const char* text : {"0-5", "6-5", "-5", "5-", "1-65536", "1-2-3", "a-b", " 1-2", "0"}) {
    EXPECT_EQ(range(text), std::pair(-1, -1)) << text;
  }
}

TEST(Listen, TakesTheFirstFreePortOfItsRange) {
  const auto loopback = *SocketAddress::Parse("127.0.0.1:0");
  const auto first = Listen(loopback, {});
  ASSERT_TRUE(first.ok());
  const uint16_t port = LocalAddressOf(first->get())->port();
  const Status status = Listen(loopback, {port, port}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("127.0.0.1")) << "the address is named";
}

TEST(Accept, NobodyThereIsNoError) {
  const auto listener = Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
  ASSERT_TRUE(listener.ok());
  const auto nobody = Accept(listener->get());
  ASSERT_TRUE(nobody.ok());
  EXPECT_FALSE(nobody->valid());
}

TEST(Connect, SaysWhereNobodyAnswers) {
  const auto listener = Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
  const auto address = *LocalAddressOf(listener->get());
  auto there = Connect(address, Clock::now() + FromSeconds(30));
  ASSERT_TRUE(there.ok()) << there.status().ToString();
  EXPECT_EQ(PeerAddressOf(there->get())->ToString(), address.ToString());
  const Status refused =
      Connect(*SocketAddress::Parse("127.0.0.1:1"), Clock::now() + FromSeconds(30)).status();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace weightcast
