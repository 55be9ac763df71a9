#include "base/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

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

}  // namespace
}  // namespace weightcast
