#include "base/listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "base/socket.h"

namespace weightcast {
namespace {

/// A child of fork that lives until it is told to end.
class Child {
 public:
  Child() {
    EXPECT_EQ(pipe(end_.data()), 0);
    EXPECT_EQ(pipe(begun_.data()), 0);
    pid_ = fork();
    if (pid_ != 0) {
      char byte = 0;
      EXPECT_EQ(read(begun_[0], &byte, 1), 1);
      return;
    }
    close(end_[1]);
    char byte = 1;
    (void)!write(begun_[1], &byte, 1);
    (void)!read(end_[0], &byte, 1);
    _exit(0);
  }
  ~Child() {
    close(end_[1]);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    EXPECT_EQ(status, 0);
    close(end_[0]);
    for (const int fd : begun_) close(fd);
  }

 private:
  std::array<int, 2> end_{};
  std::array<int, 2> begun_{};
  pid_t pid_ = -1;
};

TEST(Listener, AForkedChildHoldsNoPort) {
  Listener listener(Listen(*SocketAddress::Parse("127.0.0.1:0"), {}).value());
  const SocketAddress at = *LocalAddressOf(listener.get());
  const Child child;
  EXPECT_TRUE(Connect(at, Clock::now() + FromSeconds(5)).ok()) << "the parent still listens";
  listener.reset();
  EXPECT_EQ(Connect(at, Clock::now() + FromSeconds(5)).status().code(), Code::kUnavailable)
      << "nobody listens once the parent does not";
  EXPECT_TRUE(Listen(at, {}).ok()) << "the port is free while the child lives";
}

TEST(Listener, WhatWasMovedOrClosedIsLeftAlone) {
  Listener first(Listen(*SocketAddress::Parse("127.0.0.1:0"), {}).value());
  const int number = first.get();
  Listener second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.get(), number);
  second = Listener();
  EXPECT_FALSE(second.valid());
  std::array<int, 2> other{};  // Takes the number over.
  ASSERT_EQ(pipe(other.data()), 0);
  const pid_t pid = fork();
  if (pid == 0) _exit(write(other[1], "x", 1) == 1 && read(other[0], other.data(), 1) == 1 ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0) << "a pipe that has the number now is the child's too";
  for (const int fd : other) close(fd);
}

}  // namespace
}  // namespace weightcast
