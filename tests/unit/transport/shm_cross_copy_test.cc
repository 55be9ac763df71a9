#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/process.h"
#include "transport/shm/cross_copy.h"

namespace weightcast::transport::shm {
namespace {

/// A process that begins another program keeps its number and closes its sockets.
TEST(ShmCrossCopy, EndsWithTheSocketThoughTheProcessLives) {
  std::array<int, 2> fds{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()), 0);
  const Channel channel{UniqueFd(fds[0])};
  UniqueFd other(fds[1]);
  const auto pidfd = OpenPidFd(getpid());
  ASSERT_TRUE(pidfd.ok()) << pidfd.status().ToString();
  const CrossCopy copy(getpid(), &*pidfd, &channel);
  uint64_t from = 1;
  uint64_t to = 0;
  const iovec local{.iov_base = &from, .iov_len = sizeof from};
  const iovec remote{.iov_base = &to, .iov_len = sizeof to};
  if (copy.Write({&local, 1}, {&remote, 1}).error == EPERM) GTEST_SKIP() << "not permitted here";
  EXPECT_EQ(to, 1U);
  ASSERT_EQ(send(other.get(), "x", 1, 0), 1);
  from = 2;
  EXPECT_EQ(copy.Write({&local, 1}, {&remote, 1}).bytes, sizeof from) << "a message is no hang-up";
  other.reset();
  from = 3;
  EXPECT_EQ(copy.Write({&local, 1}, {&remote, 1}).error, ESRCH);
  EXPECT_EQ(copy.Read({&remote, 1}, {&local, 1}).error, ESRCH);
  EXPECT_EQ(to, 2U);
}

}  // namespace
}  // namespace weightcast::transport::shm
