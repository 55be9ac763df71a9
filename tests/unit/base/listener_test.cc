#include "base/listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>

#include "base/socket.h"
#include "child_process.h"

namespace weightcast {
namespace {

TEST(Listener, AForkedChildHoldsNoPort) {
  Listener listener(Listen(*SocketAddress::Parse("127.0.0.1:0"), {}).value());
  const SocketAddress at = *LocalAddressOf(listener.get());
  test::Child child([](const test::Channel& channel) {
    channel.Send("begun");
    channel.Receive();
  });
  child.channel().Receive();
  EXPECT_TRUE(Connect(at, Clock::now() + FromSeconds(5)).ok()) << "the parent still listens";
  listener.reset();
  EXPECT_EQ(Connect(at, Clock::now() + FromSeconds(5)).status().code(), Code::kUnavailable)
      << "nobody listens once the parent does not";
  EXPECT_TRUE(Listen(at, {}).ok()) << "the port is free while the child runs";
  child.channel().Send("end");
  EXPECT_EQ(child.Wait(), 0);
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
  test::Process child = test::Process::Fork(
      [&] { return write(other[1], "x", 1) == 1 && read(other[0], other.data(), 1) == 1 ? 0 : 1; });
  EXPECT_EQ(child.Wait(), 0) << "a pipe that has the number now is the child's too";
  for (const int fd : other) close(fd);
}

}  // namespace
}  // namespace weightcast
