#include "base/acceptor.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <vector>

#include "base/socket.h"
#include "base/strings.h"

namespace weightcast {
namespace {

using namespace std::chrono_literals;
using Then = Acceptor::Answer::Then;

TimePoint Soon() { return Clock::now() + 10s; }

/// Answers "q" with "bye", greets "h", takes what begins with "t".
Acceptor::Answer Look(const Acceptor::Opening& opening) {
  if (opening.bytes[0] == 'q') return {.then = Then::kEnd, .send = "bye"};
  if (opening.bytes[0] == 't' && opening.bytes.size() == 4) return {.then = Then::kTake};
  const bool greets = opening.bytes[0] == 'h' && opening.before == 0;
  return {.then = Then::kWait, .send = greets ? "hello" : ""};
}

class AcceptorTest : public ::testing::Test {
 protected:
  void Start(size_t most, Duration patience = 60s) {
    auto listener = Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
    ASSERT_TRUE(listener.ok());
    address_ = *LocalAddressOf(listener->get());
    Acceptor::Options options{.thread_name = "test",
                              .listeners = {},
                              .most = most,
                              .patience = patience,
                              .look = Look,
                              .take = [this](UniqueFd fd) { taken_.set_value(std::move(fd)); }};
    options.listeners.push_back(std::move(*listener));
    auto acceptor = Acceptor::Start(std::move(options));
    ASSERT_TRUE(acceptor.ok()) << acceptor.status().ToString();
    acceptor_ = std::move(*acceptor);
  }
  UniqueFd ConnectTo(std::string_view first) {
    auto fd = Connect(address_, Soon());
    EXPECT_TRUE(fd.ok());
    EXPECT_TRUE(SendAll(fd->get(), first, Soon()).ok());
    return std::move(*fd);
  }
  static std::string Receive(const UniqueFd& fd, size_t size) {
    std::string text(size, '\0');
    const Status status = ReceiveAll(fd.get(), text.data(), size, Soon());
    return status.ok() ? text : status.ToString();
  }
  static bool Ends(const UniqueFd& fd) {
    char byte = 0;
    return WaitFor(fd.get(), POLLIN, Soon()) && ::recv(fd.get(), &byte, 1, 0) <= 0;
  }

  SocketAddress address_;
  std::promise<UniqueFd> taken_;
  std::unique_ptr<Acceptor> acceptor_;
};

TEST_F(AcceptorTest, AnswersAndEnds) {
  Start(4);
  const UniqueFd asks = ConnectTo("question");
  EXPECT_EQ(Receive(asks, 3), "bye");
  EXPECT_TRUE(Ends(asks));
}

TEST_F(AcceptorTest, HandsOverWithAllBytesUnread) {
  Start(4);
  const UniqueFd client = ConnectTo("ta");
  ASSERT_TRUE(SendAll(client.get(), "ke", Soon()).ok());
  const UniqueFd taken = taken_.get_future().get();
  EXPECT_EQ(Receive(taken, 4), "take");
}

TEST_F(AcceptorTest, GreetsOnceAndGoesOn) {
  Start(4);
  const UniqueFd client = ConnectTo("hi");
  EXPECT_EQ(Receive(client, 5), "hello");
  ASSERT_TRUE(SendAll(client.get(), "more", Soon()).ok());
  EXPECT_FALSE(WaitFor(client.get(), POLLIN, Clock::now() + 50ms)) << "said nothing, and is held";
}

TEST_F(AcceptorTest, SilentOnesEndFirst) {
  Start(2);
  const UniqueFd speaks = ConnectTo("hi");
  EXPECT_EQ(Receive(speaks, 5), "hello");
  const UniqueFd silent = ConnectTo("");
  const UniqueFd other = ConnectTo("hi");
  EXPECT_TRUE(Ends(silent));
  EXPECT_EQ(Receive(other, 5), "hello");
  EXPECT_FALSE(WaitFor(speaks.get(), POLLIN, Clock::now()));
  const UniqueFd asks = ConnectTo("question");
  EXPECT_EQ(Receive(asks, 3), "bye");
  EXPECT_TRUE(Ends(asks)) << "who has its answer ends before who waits for one";
  EXPECT_FALSE(WaitFor(speaks.get(), POLLIN, Clock::now()));
  EXPECT_FALSE(WaitFor(other.get(), POLLIN, Clock::now()));
}

TEST_F(AcceptorTest, EndsWhoIsLateOrSaysTooMuch) {
  Start(4, 100ms);
  EXPECT_TRUE(Ends(ConnectTo("")));
  EXPECT_TRUE(Ends(ConnectTo("wait")));
  Start(4);
  EXPECT_TRUE(Ends(ConnectTo(std::string(Acceptor::kMostBytes + 1, 'w'))));
}

}  // namespace
}  // namespace weightcast
