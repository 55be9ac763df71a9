#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/socket.h"
#include "endpoint/channel.h"
#include "endpoint/handshake.h"
#include "endpoint/message.h"
#include "endpoint/notices.h"
#include "stream/shared_key.h"
#include "unit/endpoint/party.h"

namespace weightcast::endpoint {
namespace {

using ::testing::HasSubstr;

// --- The window ------------------------------------------------------------------------------------

TEST(Notices, CreditIsTakenAndGivenBack) {
  Notices notices;
  size_t sent = 0;
  while (notices.Reserve(kMaxNotice)) {
    notices.OnSent(kMaxNotice);
    ++sent;
  }
  EXPECT_EQ(sent, 7U) << "as docs/wire.md says";
  while (notices.Reserve(0)) notices.OnSent(0);
  EXPECT_FALSE(notices.Reserve(0));
  const uint32_t before = notices.credited().value();
  ASSERT_TRUE(notices.OnCredit(EncodeCredit(Notices::CostOf(kMaxNotice))).ok());
  EXPECT_GT(notices.credited().value(), before);
  EXPECT_TRUE(notices.Reserve(kMaxNotice));
  EXPECT_FALSE(notices.Reserve(0));
}

TEST(Notices, CreditMustGrowAndBeForWhatWasSent) {
  Notices notices;
  ASSERT_TRUE(notices.Reserve(100));
  EXPECT_EQ(notices.OnCredit(EncodeCredit(1)).code(), Code::kProtocol) << "it is not sent yet";
  notices.OnSent(100);
  EXPECT_EQ(notices.OnCredit(EncodeCredit(0)).code(), Code::kProtocol);
  EXPECT_EQ(notices.OnCredit(EncodeCredit(Notices::CostOf(100) + 1)).code(), Code::kProtocol);
  EXPECT_EQ(notices.OnCredit("short").code(), Code::kProtocol);
  EXPECT_TRUE(notices.OnCredit(EncodeCredit(Notices::CostOf(100))).ok());
  EXPECT_EQ(notices.OnCredit(EncodeCredit(Notices::CostOf(100))).code(), Code::kProtocol);
}

TEST(Notices, NoMoreThanTheWindowIsKept) {
  Notices notices;
  EXPECT_TRUE(*notices.OnNotice("first"));
  EXPECT_FALSE(*notices.OnNotice("second"));
  EXPECT_EQ(notices.OnNotice(std::string(kMaxNotice + 1, 'x')).status().code(), Code::kProtocol);
  uint64_t cost = Notices::CostOf(5) + Notices::CostOf(6);
  for (; cost + Notices::CostOf(0) <= Notices::kWindow; cost += Notices::CostOf(0)) {
    ASSERT_TRUE(notices.OnNotice("").ok());
  }
  // Taking alone lets nothing in: the peer cannot know of it.
  EXPECT_EQ(notices.Take(), "first");
  EXPECT_EQ(notices.OnNotice("").status().code(), Code::kProtocol);
}

TEST(Notices, CreditIsDueOnceForAQuarter) {
  Notices notices;
  const auto longest = Notices::CostOf(kMaxNotice);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(notices.OnNotice(std::string(kMaxNotice, 'x')).ok());
  ASSERT_TRUE(notices.Take());
  EXPECT_FALSE(notices.CreditDue());
  ASSERT_TRUE(notices.Take());
  EXPECT_TRUE(notices.CreditDue());
  ASSERT_TRUE(notices.Take());
  EXPECT_FALSE(notices.CreditDue()) << "one is on its way and will say this too";
  EXPECT_EQ(ParseCredit(notices.NextCredit()), 3 * longest);
  EXPECT_FALSE(notices.CreditDue());
  ASSERT_TRUE(notices.Take() && notices.Take());
  EXPECT_TRUE(notices.CreditDue());
  EXPECT_EQ(ParseCredit(notices.NextCredit()), 5 * longest);
  EXPECT_FALSE(notices.Take());
}

// --- Between two endpoints -------------------------------------------------------------------------

using NoticeTest = EndpointTest;

std::string Text(uint64_t number, size_t size) {
  const auto bytes = Pattern(size, number);
  return std::to_string(number) + ":" + std::string(reinterpret_cast<const char*>(bytes.data()), size);
}

TEST_F(NoticeTest, ArriveOnceAndInOrderInBothDirections) {
  Pair pair;
  constexpr uint64_t kCount = 2000;  // Many windows.
  const auto send = [&](Connection& connection, uint64_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    for (uint64_t i = 0; i < kCount; ++i) {
      const size_t size = random() % (i % 10 == 0 ? 30'000 : 300);
      ASSERT_TRUE(connection.Notify(Text(i, size), Soon()).ok());
    }
  };
  const auto take = [&](Connection& connection, uint64_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    for (uint64_t i = 0; i < kCount; ++i) {
      const size_t size = random() % (i % 10 == 0 ? 30'000 : 300);
      auto notice = connection.TakeNotice(Soon());
      ASSERT_TRUE(notice.ok()) << notice.status().ToString();
      ASSERT_EQ(*notice, Text(i, size));
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { send(*pair.to_b, 1); });
  threads.emplace_back([&] { send(*pair.to_a, 2); });
  threads.emplace_back([&] { take(*pair.to_a, 1); });
  threads.emplace_back([&] { take(*pair.to_b, 2); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pair.to_a->TakeNotice(TimePoint{}).status().code(), Code::kTimedOut);
  EXPECT_TRUE(pair.to_a->status().ok() && pair.to_b->status().ok());
}

TEST_F(NoticeTest, ManyThreadsSendAndTake) {
  Pair pair;
  constexpr int kThreads = 4;
  constexpr int kEach = 3000;
  std::atomic<int> taken = 0;
  std::atomic<uint64_t> sum = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        ASSERT_TRUE(pair.to_b->Notify(std::to_string(t * kEach + i) + std::string(200, ' '), Soon()).ok());
      }
    });
    threads.emplace_back([&] {
      while (taken.fetch_add(1) < kThreads * kEach) {
        auto notice = pair.to_a->TakeNotice(Soon());
        ASSERT_TRUE(notice.ok()) << notice.status().ToString();
        sum += std::stoull(*notice);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const uint64_t all = kThreads * kEach;
  EXPECT_EQ(sum, all * (all - 1) / 2);
}

TEST_F(NoticeTest, LengthsAreBounded) {
  Pair pair;
  EXPECT_EQ(pair.to_b->Notify(std::string(Connection::kMaxNotice + 1, 'x')).code(), Code::kInvalidArgument);
  const std::string longest(Connection::kMaxNotice, 'y');
  ASSERT_TRUE(pair.to_b->Notify("").ok());
  ASSERT_TRUE(pair.to_b->Notify(longest).ok());
  EXPECT_EQ(*pair.to_a->TakeNotice(Soon()), "");
  EXPECT_EQ(*pair.to_a->TakeNotice(Soon()), longest);
}

TEST_F(NoticeTest, APeerThatTakesNoneHoldsTheSenderBack) {
  Pair pair;
  int sent = 0;
  Status status = Status::Ok();
  while (sent < 100'000 && (status = pair.to_b->Notify(Text(sent, 1000))).ok()) ++sent;
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_THAT(status.message(), HasSubstr("has not taken"));
  EXPECT_EQ(pair.to_b->Notify(Text(sent, 1000), Clock::now()).code(), Code::kTimedOut);
  const auto early = Clock::now() + std::chrono::milliseconds(5);
  EXPECT_EQ(pair.to_b->Notify(Text(sent, 1000), early).code(), Code::kTimedOut);
  // All else goes on.
  EXPECT_TRUE(pair.WriteAll()->Wait(Soon()).ok());
  ASSERT_TRUE(pair.to_a->Notify("back").ok());
  EXPECT_EQ(*pair.to_b->TakeNotice(Soon()), "back");
  // One who waits goes on as they are taken; those that were refused were not sent.
  std::thread waiting([&] { EXPECT_TRUE(pair.to_b->Notify(Text(sent, 1000), Soon()).ok()); });
  for (int i = 0; i <= sent; ++i) ASSERT_EQ(*pair.to_a->TakeNotice(Soon()), Text(i, 1000));
  waiting.join();
  EXPECT_EQ(pair.to_a->TakeNotice(Clock::now()).status().code(), Code::kTimedOut);
}

TEST_F(NoticeTest, WhatCameBeforeTheEndIsStillGiven) {
  Pair pair;
  ASSERT_TRUE(pair.to_b->Notify("one").ok());
  ASSERT_TRUE(pair.to_b->Notify("two").ok());
  pair.to_b->Close();
  pair.b.Disconnected();
  EXPECT_EQ(*pair.to_a->TakeNotice(Soon()), "one");
  EXPECT_EQ(*pair.to_a->TakeNotice(Soon()), "two");
  EXPECT_EQ(pair.to_a->TakeNotice(Soon()).status().code(), Code::kUnavailable);
  EXPECT_EQ(pair.to_a->Notify("late").code(), Code::kUnavailable);
  EXPECT_EQ(pair.to_b->Notify("late", Soon()).code(), Code::kCancelled);
}

TEST_F(NoticeTest, TheEndWakesThoseWhoWait) {
  Pair pair;
  while (pair.to_b->Notify(std::string(1000, 'x')).ok()) {
  }
  std::atomic<int> begun = 0;
  std::thread sender([&] {
    ++begun;
    EXPECT_EQ(pair.to_b->Notify(std::string(1000, 'x'), Soon()).code(), Code::kUnavailable);
  });
  std::thread taker([&] {
    ++begun;
    EXPECT_EQ(pair.to_b->TakeNotice(Soon()).status().code(), Code::kUnavailable);
  });
  while (begun < 2) std::this_thread::yield();
  const TimePoint then = Clock::now();
  pair.b.Destroy();
  sender.join();
  taker.join();
  EXPECT_LT(Clock::now() - then, kPatience / 2) << "woken, not timed out";
}

TEST_F(NoticeTest, AHintTellsWhenToLook) {
  std::mutex mutex;
  std::vector<std::string> got;
  std::atomic<int> hints = 0;
  const auto drain = [&](Connection connection) {
    ++hints;
    while (true) {
      auto notice = connection.TakeNotice(TimePoint{});
      if (!notice.ok()) return;
      EXPECT_TRUE(connection.Notify("pong").ok());
      const std::lock_guard lock(mutex);
      got.push_back(*notice);
    }
  };
  Pair pair(1 << 16, Access::kReadWrite, {}, {.role = "inference", .rank = 1, .on_notice = drain});
  EXPECT_EQ(hints, 0);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pair.to_b->Notify("ping", Soon()).ok());
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(*pair.to_b->TakeNotice(Soon()), "pong");
  const std::lock_guard lock(mutex);
  EXPECT_EQ(got.size(), 1000U);
  EXPECT_GE(hints, 1);
}

// --- Hostile peers -----------------------------------------------------------------------------------

/// The control socket that leads from this process to the listener of `other`.
int ControlSocketTo(const Party& other) {
  const uint16_t port = ParseHostPort(other->Addresses()[0])->port;
  for (int fd = 3; fd < 1000; ++fd) {
    const auto peer = PeerAddressOf(fd);
    if (peer.ok() && peer->family() != AF_UNIX && peer->port() == port) return fd;
  }
  return -1;
}

std::string Frame(MessageType type, std::string_view payload) {
  ByteWriter out;
  out.Put(static_cast<uint32_t>(payload.size()));
  out.Put(static_cast<uint8_t>(type));
  out.PutRaw(payload);
  return out.Take();
}

/// Why b ends the connection when a, whatever it has credit for, sends this.
Status EndAfter(std::string_view frames) {
  Pair pair;
  const int fd = ControlSocketTo(pair.b);
  EXPECT_GE(fd, 0);
  // b may end in the middle of it.
  (void)SendAll(fd, frames, Soon());
  return pair.b.Disconnected().second;
}

TEST_F(NoticeTest, WhoOverrunsItsCreditIsCutOff) {
  const std::string one = Frame(MessageType::kNotice, std::string(1000, 'x'));
  std::string many;
  for (uint64_t cost = 0; cost <= Notices::kWindow; cost += Notices::CostOf(1000)) many += one;
  const Status reason = EndAfter(many);
  EXPECT_EQ(reason.code(), Code::kProtocol);
  EXPECT_THAT(reason.message(), HasSubstr("credit"));
}

TEST_F(NoticeTest, WhoBreaksTheRulesIsCutOff) {
  EXPECT_EQ(EndAfter(Frame(MessageType::kNotice, std::string(kMaxNotice + 1, 'x'))).code(), Code::kProtocol);
  EXPECT_EQ(EndAfter(Frame(MessageType::kCredit, EncodeCredit(1))).code(), Code::kProtocol);
  EXPECT_EQ(EndAfter(Frame(MessageType::kCredit, "")).code(), Code::kProtocol);
}

/// Proves itself with the token and then says `last` instead of an offer; the shutdown message that it gets.
std::optional<Status> ShutdownAfter(const Party& party, const Message& last) {
  auto fd = Connect(*SocketAddress::Parse(party->Addresses()[0]), Soon());
  if (!fd.ok()) return std::nullopt;
  Channel channel(std::move(fd).value());
  Hello hello;
  hello.identity = {"test", "trainer", "", 7, 77};
  hello.chunk = 4096;
  hello.lease = FromSeconds(5);
  const auto key = stream::SharedKeyOf(PartyOptions{}.token, stream::Purpose::kPeers, "a test");
  Handshaker machine(Role::kInitiator, hello,
                     [&](const Identity&) { return Key{Key::Of::kJob, std::string(key->bytes())}; });
  bool said = false;
  if (!channel.Send(machine.Start()).ok()) return std::nullopt;
  while (WaitFor(channel.fd(), POLLIN, Soon())) {
    const Status received = channel.Receive().status();
    for (auto next = channel.Next(); next.ok() && next->has_value(); next = channel.Next()) {
      const Message& message = **next;
      if (message.type == MessageType::kShutdown) return ParseOutcome(message.payload);
      if (machine.state() == Handshaker::State::kAccepted) continue;
      for (const Message& answer : machine.OnMessage(message)) (void)channel.Send(answer);
      if (machine.peer_accepted() && !std::exchange(said, true)) {
        (void)channel.Send(machine.Accept());
        (void)channel.Send(last);
      }
    }
    if (!received.ok()) break;
  }
  return std::nullopt;
}

TEST_F(NoticeTest, NoneComesBeforeTheTransportIsChosen) {
  Party party;
  const auto why = ShutdownAfter(party, {MessageType::kNotice, "early"});
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->code(), Code::kProtocol);
  EXPECT_THAT(why->message(), HasSubstr("before a transport"));
}

}  // namespace
}  // namespace weightcast::endpoint
