// Shared memory and the socket that carries it: sealed, bounded, never leaked.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "open_fds.h"
#include "transport/shm/channel.h"
#include "transport/shm/copy.h"
#include "transport/shm/messages.h"
#include "transport/shm/shared_memory.h"

namespace weightcast::transport::shm {
namespace {

TEST(ShmMemoryTest, SharedPagesAreZeroSealedAndSeenByBoth) {
  auto pages = CreateShared(10'000, false);
  ASSERT_TRUE(pages.ok());
  EXPECT_EQ(pages->mapping.size(), 10'000U);
  EXPECT_EQ(pages->mapping.data()[9'999], std::byte{0});
  EXPECT_NE(ftruncate(pages->fd.get(), 100), 0);
  EXPECT_NE(ftruncate(pages->fd.get(), 100'000), 0);
  auto peer = MapPeer(pages->fd.get(), 4'000, 6'000, true);
  ASSERT_TRUE(peer.ok());
  peer->data()[1] = std::byte{42};
  EXPECT_EQ(pages->mapping.data()[4'001], std::byte{42});
}

TEST(ShmMemoryTest, PeersCannotWriteWhereTheyShallOnlyRead) {
  auto pages = CreateShared(4096, true);
  ASSERT_TRUE(pages.ok());
  pages->mapping.data()[0] = std::byte{1};
  const auto writable = MapPeer(pages->fd.get(), 0, 4096, true);
  ASSERT_FALSE(writable.ok());
  EXPECT_EQ(writable.status().code(), Code::kPermission);
  const auto readable = MapPeer(pages->fd.get(), 0, 4096, false);
  ASSERT_TRUE(readable.ok());
  EXPECT_EQ(readable->data()[0], std::byte{1});
}

TEST(ShmMemoryTest, WhatCouldBeCutShortIsNotMapped) {
  const UniqueFd open_ended(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open_ended.get(), 8192), 0);
  EXPECT_FALSE(MapPeer(open_ended.get(), 0, 8192, true).ok()) << "not sealed";
  ASSERT_EQ(fcntl(open_ended.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(MapPeer(open_ended.get(), 0, 8192, true).ok());
  EXPECT_FALSE(MapPeer(open_ended.get(), 0, 8193, true).ok()) << "longer than it is";
  EXPECT_FALSE(MapPeer(open_ended.get(), 1, 8192, true).ok());
  EXPECT_FALSE(MapPeer(open_ended.get(), ~uint64_t{0} - 5, 8, true).ok()) << "wraps around";
  EXPECT_FALSE(MapPeer(open_ended.get(), 0, 0, true).ok());
  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(MapPeer(file.get(), 0, 16, false).ok()) << "an ordinary file";
  std::array<int, 2> pipe{};
  ASSERT_EQ(pipe2(pipe.data(), O_CLOEXEC), 0);
  EXPECT_FALSE(MapPeer(pipe[0], 0, 16, false).ok());
  close(pipe[0]);
  close(pipe[1]);
}

TEST(ShmMemoryTest, TooMuchIsAnErrorAndNoSignal) {
  const auto pages = CreateShared(size_t{1} << 50, false);
  ASSERT_FALSE(pages.ok());
  EXPECT_EQ(pages.status().code(), Code::kExhausted);
}

TEST(ShmMemoryTest, UncachedCopiesAreExactAtEveryOffset) {
  constexpr size_t kRoom = 200'000;
  std::vector<std::byte> from(kRoom);
  for (size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{63}, size_t{16'384}, size_t{65'536}, size_t{150'001}}) {
    for (const size_t skew : {size_t{0}, size_t{1}, size_t{15}, size_t{64}}) {
      std::vector<std::byte> to(kRoom, std::byte{0x5a});
      CopyUncached(to.data() + 100 + skew, from.data() + skew / 2, size);
      ASSERT_EQ(std::memcmp(to.data() + 100 + skew, from.data() + skew / 2, size), 0) << size;
      ASSERT_EQ(to[99 + skew], std::byte{0x5a});
      ASSERT_EQ(to[100 + skew + size], std::byte{0x5a});
    }
  }
}

class ShmChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> pair{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()), 0);
    a = Channel(UniqueFd(pair[0]));
    b = Channel(UniqueFd(pair[1]));
  }
  Channel a;
  Channel b;
};

TEST_F(ShmChannelTest, MessagesKeepTheirBordersAndDescriptors) {
  const UniqueFd some(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::array fds = {some.get(), some.get()};
  ASSERT_TRUE(a.Send("first", fds).ok());
  ASSERT_TRUE(a.Send("second").ok());
  auto first = b.Receive();
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ((*first)->bytes, "first");
  ASSERT_EQ((*first)->fds.size(), 2U);
  EXPECT_NE(fcntl((*first)->fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  auto second = b.Receive();
  ASSERT_TRUE(second.ok() && second->has_value());
  EXPECT_EQ((*second)->bytes, "second");
  const auto none = b.Receive();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
}

TEST_F(ShmChannelTest, WhatDoesNotFitWaitsAndThenIsRefused) {
  const UniqueFd some(open("/dev/null", O_RDONLY | O_CLOEXEC));
  size_t sent = 0;
  while (a.Send(std::to_string(sent), std::array{some.get()}).ok()) ++sent;
  EXPECT_TRUE(a.waiting());
  EXPECT_TRUE(a.congested());
  for (size_t i = 0; i < sent; ++i) {
    auto message = b.Receive();
    ASSERT_TRUE(message.ok() && message->has_value());
    ASSERT_EQ((*message)->bytes, std::to_string(i));
    ASSERT_EQ((*message)->fds.size(), 1U);
    ASSERT_TRUE(a.Flush().ok());
  }
  EXPECT_FALSE(a.waiting());
}

TEST_F(ShmChannelTest, DescriptorsOfHostileMessagesAreClosed) {
  const size_t before = test::OpenFds();
  const UniqueFd some(open("/dev/null", O_RDONLY | O_CLOEXEC));
  constexpr size_t kTooMany = Channel::kMostFds + 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kTooMany)> control{};
  const auto send_with_fds = [&](size_t bytes) {
    std::array<char, 1000> text{};
    iovec io{.iov_base = text.data(), .iov_len = bytes};
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * kTooMany);
    for (size_t i = 0; i < kTooMany; ++i) {
      const int fd = some.get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof fd);
    }
    ASSERT_EQ(sendmsg(a.fd(), &message, 0), static_cast<ssize_t>(bytes));
  };
  send_with_fds(10);  // More descriptors than any message has.
  EXPECT_FALSE(b.Receive().ok());
  send_with_fds(0);  // An empty message looks like the end.
  EXPECT_FALSE(b.Receive().ok());
  send_with_fds(1000);  // Too long.
  EXPECT_FALSE(b.Receive().ok());
  EXPECT_EQ(test::OpenFds(), before + 1);
}

TEST_F(ShmChannelTest, TheLastMessagesBeforeAHangUpAreHeard) {
  ASSERT_TRUE(a.Send("unread by the peer").ok());
  ASSERT_TRUE(b.Send(Encode(Bye{})).ok());
  b.Close();  // With something unread: the kernel resets the other end.
  auto last = a.Receive();
  ASSERT_TRUE(last.ok() && last->has_value());
  EXPECT_EQ((*last)->bytes, Encode(Bye{}));
  const auto end = a.Receive();
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.status().code(), Code::kUnavailable);
}

TEST_F(ShmChannelTest, NobodyListens) {
  const auto nobody = Channel::Connect("weightcast-nobody-is-here");
  ASSERT_FALSE(nobody.ok());
  EXPECT_EQ(nobody.status().code(), Code::kUnavailable);
  EXPECT_FALSE(Channel::Connect("").ok());
  EXPECT_FALSE(Channel::Connect(std::string(200, 'x')).ok());
}

}  // namespace
}  // namespace weightcast::transport::shm
