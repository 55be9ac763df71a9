#include "base/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "base/strings.h"

namespace weightcast {
namespace {

TEST(Socket, APeerThatHasGivenTheConnectionUpIsNoticedByWhoOnlyReceives) {
  const auto listener = Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  const auto address = LocalAddressOf(listener->get());
  const TimePoint soon = Clock::now() + std::chrono::seconds(20);
  const auto ours = Connect(*address, soon);
  ASSERT_TRUE(ours.ok()) << ours.status().ToString();
  ASSERT_TRUE(WaitFor(listener->get(), POLLIN, soon));
  auto theirs = Accept(listener->get());
  ASSERT_TRUE(theirs.ok() && theirs->valid());
  TuneTcp(ours->get(), std::chrono::milliseconds(500));
  // In repair mode a socket ends without a word, as one does whose last packets are lost.
  const int on = 1;
  if (setsockopt(theirs->get(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) != 0)
    GTEST_SKIP() << "TCP_REPAIR is not allowed here";
  theirs->reset();
  EXPECT_TRUE(WaitFor(ours->get(), POLLIN, soon));
  EXPECT_FALSE(ConnectOutcome(ours->get(), *address).ok());
}

int OptionOf(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

/// Its traffic class over IPv4, over IPv6 where it is such a socket, and its priority.
std::string MarksOf(int fd, int family) {
  return StrCat(OptionOf(fd, IPPROTO_IP, IP_TOS), " ",
                family == AF_INET6 ? OptionOf(fd, IPPROTO_IPV6, IPV6_TCLASS) : -1, " ",
                OptionOf(fd, SOL_SOCKET, SO_PRIORITY));
}

class SocketClass : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto made = Listen(*SocketAddress::Parse(GetParam()), {});
    if (!made.ok()) GTEST_SKIP() << made.status().ToString();
    listener = std::move(*made);
    address = *LocalAddressOf(listener.get());
  }
  UniqueFd Accepted() {
    EXPECT_TRUE(WaitFor(listener.get(), POLLIN, soon));
    auto fd = Accept(listener.get());
    EXPECT_TRUE(fd.ok() && fd->valid());
    return std::move(*fd);
  }
  UniqueFd listener;
  SocketAddress address;
  const TimePoint soon = Clock::now() + std::chrono::seconds(20);
};

TEST_P(SocketClass, BothEndsHaveItAndBothFamiliesTheSamePriority) {
  const UniqueFd plain(socket(AF_INET, SOCK_STREAM, 0));
  const int byte = 0xb8;
  ASSERT_EQ(setsockopt(plain.get(), IPPROTO_IP, IP_TOS, &byte, sizeof byte), 0);
  const int priority = OptionOf(plain.get(), SOL_SOCKET, SO_PRIORITY);
  EXPECT_GT(priority, 0);
  const std::string wanted = StrCat(0xb8, " ", address.family() == AF_INET6 ? 0xb8 : -1, " ", priority);
  ASSERT_TRUE(SetTrafficClass(listener.get(), 0xb8).ok());
  const auto ours = StartConnect(address, 0xb8);
  ASSERT_TRUE(ours.ok()) << ours.status().ToString();
  EXPECT_EQ(MarksOf(ours->get(), address.family()), wanted);
  const UniqueFd theirs = Accepted();
  ASSERT_TRUE(SetTrafficClass(theirs.get(), 0xb8).ok());
  EXPECT_EQ(MarksOf(theirs.get(), address.family()), wanted);
}

TEST_P(SocketClass, EveryByteHasTheKernelsPriority) {
  for (int byte = 0; byte < 256; ++byte) {
    const UniqueFd plain(socket(AF_INET, SOCK_STREAM, 0));
    setsockopt(plain.get(), IPPROTO_IP, IP_TOS, &byte, sizeof byte);
    const UniqueFd ours(socket(address.family(), SOCK_STREAM, 0));
    ASSERT_TRUE(SetTrafficClass(ours.get(), static_cast<uint8_t>(byte)).ok());
    EXPECT_EQ(OptionOf(ours.get(), SOL_SOCKET, SO_PRIORITY), OptionOf(plain.get(), SOL_SOCKET, SO_PRIORITY))
        << byte;
  }
}

TEST_P(SocketClass, NoneLeavesTheSystems) {
  const auto ours = StartConnect(address);
  ASSERT_TRUE(ours.ok()) << ours.status().ToString();
  const std::string before =
      MarksOf(UniqueFd(socket(address.family(), SOCK_STREAM, 0)).get(), address.family());
  EXPECT_EQ(MarksOf(ours->get(), address.family()), before);
}

TEST_P(SocketClass, TheLowestTwoBitsStayTheKernels) {
  const auto ours = StartConnect(address, 0x6a);
  ASSERT_TRUE(ours.ok()) << ours.status().ToString();
  EXPECT_EQ(OptionOf(ours->get(), IPPROTO_IP, IP_TOS), 0x68);
}

INSTANTIATE_TEST_SUITE_P(Families, SocketClass, ::testing::Values("127.0.0.1:0", "[::1]:0"));

TEST(Socket, AClassThatTheSystemRefusesIsAnError) {
  const Status status = SetTrafficClass(-1, 8);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("traffic class 8"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace weightcast
