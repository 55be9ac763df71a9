#include "stream/handshakes.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fixture.h"
#include "use_key.h"

namespace weightcast::stream {
namespace {

/// Handshakes of which one at a time goes on, with clients that have sent their ClientHello and say no more.
class HandshakesTest : public ::testing::Test {
 protected:
  static constexpr auto kBegun = 1, kWaits = 0, kClosed = -1;

  void Start(size_t most_waiting) {
    auto made = Handshakes::Create({.keys = std::make_shared<const ServerKeys>(Master(), kVersion),
                                    .most = 1,
                                    .most_waiting = most_waiting,
                                    .most_queued = size_t{1} << 20,
                                    .patience = kLong,
                                    .on_proven = [](auto) {},
                                    .wake = [] {}});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    handshakes_ = std::move(*made);
  }
  void Connect() {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    clients_.emplace_back(ends[0]);
    const std::string hello = ClientHelloOf(TrainerKeys());
    ASSERT_EQ(::send(ends[0], hello.data(), hello.size(), MSG_NOSIGNAL), static_cast<ssize_t>(hello.size()));
    handshakes_->Add(UniqueFd(ends[1]));
  }
  /// What has become of each client.
  [[nodiscard]] std::vector<int> Clients() const {
    std::vector<int> states;
    for (const UniqueFd& client : clients_) {
      char byte = 0;
      const ssize_t got = ::recv(client.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      states.push_back(got > 0 ? kBegun : got == 0 || errno == ECONNRESET ? kClosed : kWaits);
    }
    return states;
  }
  /// The next step that has room.
  void StepOnceThereIsRoom() {
    while (Clock::now() < handshakes_->deadline()) ::poll(nullptr, 0, 1);
    handshakes_->Step();
  }

  std::unique_ptr<Handshakes> handshakes_;
  std::vector<UniqueFd> clients_;
};

TEST_F(HandshakesTest, BeginTheNewestFirst) {
  Start(3);
  for (int i = 0; i < 3; ++i) Connect();
  handshakes_->Step();
  EXPECT_EQ(Clients(), (std::vector{kWaits, kWaits, kBegun}));
  StepOnceThereIsRoom();
  EXPECT_EQ(Clients(), (std::vector{kWaits, kBegun, kBegun}));
}

TEST_F(HandshakesTest, CloseTheOldestOfTooMany) {
  Start(2);
  for (int i = 0; i < 3; ++i) Connect();
  EXPECT_EQ(Clients(), (std::vector{kClosed, kWaits, kWaits}));
  handshakes_->LimitWaiting(1);
  Connect();
  EXPECT_EQ(Clients(), (std::vector{kClosed, kClosed, kClosed, kWaits}));
}

TEST_F(HandshakesTest, SkipWhoHasHungUp) {
  Start(2);
  for (int i = 0; i < 2; ++i) Connect();
  clients_.pop_back();
  handshakes_->Step();
  EXPECT_EQ(Clients(), (std::vector{kBegun}));
}

}  // namespace
}  // namespace weightcast::stream
