#include "stream/server.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>
#include <vector>

#include "fixture.h"
#include "stream/frame.h"

namespace weightcast::stream {
namespace {

using ::testing::HasSubstr;

struct Opened {
  std::unique_ptr<ClientStream> client = NewClient();
  std::shared_ptr<ServerStream> stream;
};

Opened OpenTo(TestServer& server, const Member& member = {Role::kTrainer}) {
  Opened opened;
  const Status status = ConnectStream(*opened.client, server.address(), TokenOf(member));
  EXPECT_TRUE(status.ok()) << status.ToString();
  auto told = server.Next();
  EXPECT_EQ(told.what, "open");
  opened.stream = std::move(told.stream);
  return opened;
}

TEST(StreamServer, KnowsWhoEachClientIs) {
  TestServer server;
  server.Start();
  std::vector<Opened> all;
  for (const Member& member :
       {Member{Role::kTrainer}, Member{Role::kInference}, Member{Role::kInference, "engine a"}}) {
    all.push_back(OpenTo(server, member));
    ASSERT_NE(all.back().stream, nullptr);
    EXPECT_EQ(all.back().stream->member(), member);
    EXPECT_THAT(all.back().stream->peer(), HasSubstr("127.0.0.1:"));
  }
}

TEST(StreamServer, TakesObserversOfEveryRoleThatMayWatch) {
  TestServer server;
  server.Start();
  for (const Role role : {Role::kTrainer, Role::kInference, Role::kObserver}) {
    const auto client = NewClient();
    ASSERT_TRUE(ConnectStream(*client, server.address(), TokenOf({role}), Purpose::kObserve).ok());
    EXPECT_EQ(server.Next().stream->member().role, Role::kObserver);
    client->Abort();
    EXPECT_EQ(server.Next().what, "closed");
  }
  const auto client = NewClient();
  EXPECT_EQ(ConnectStream(*client, server.address(), TokenOf({Role::kObserver})).code(), Code::kPermission);
  EXPECT_EQ(ConnectStream(*client, server.address(), TokenOf({Role::kPeer}), Purpose::kObserve).code(),
            Code::kPermission);
}

TEST(StreamServer, CarriesBodiesOfAllSizesBothWaysInOrder) {
  TestServer server;
  server.Start(size_t{64} << 20);
  const Opened opened = OpenTo(server);
  std::vector<std::string> bodies = {"", "a"};
  for (const size_t size : {size_t{100}, size_t{16384}, size_t{70000}, kMostFrameBytes})
    bodies.emplace_back(size, static_cast<char>('b' + size % 7));
  for (const std::string& body : bodies) ASSERT_TRUE(opened.client->Send(body).ok());
  server.Do([&] {
    for (const std::string& body : bodies) EXPECT_TRUE(opened.stream->Send(body).ok());
  });
  for (const std::string& body : bodies) {
    const auto event = NextOf(*opened.client);
    ASSERT_EQ(event.kind, EventKind::kMessage) << event.reason.ToString();
    EXPECT_TRUE(event.body == body);
  }
  // The client's own go out while it waits for events.
  (void)opened.client->Next(Clock::now());
  for (const std::string& body : bodies) {
    auto told = server.Next();
    ASSERT_EQ(told.what, "message") << told.reason.ToString();
    EXPECT_TRUE(told.body == body);
  }
}

TEST(StreamServer, RefusesBodiesAboveTheLimit) {
  TestServer server;
  server.Start();
  const Opened opened = OpenTo(server);
  EXPECT_EQ(opened.client->Send(std::string(kMostFrameBytes + 1, 'x')).code(), Code::kInvalidArgument);
  EXPECT_EQ(opened.client->Send("still open").code(), Code::kOk);
  (void)opened.client->Next(Clock::now());
  EXPECT_EQ(server.Next().body, "still open");
}

TEST(StreamServer, SaysWhyItClosesAfterAllThatItHasSent) {
  TestServer server;
  server.Start();
  const Opened opened = OpenTo(server);
  ASSERT_TRUE(opened.client->Send("unread").ok());
  server.Do([&] {
    EXPECT_TRUE(opened.stream->Send("last words").ok());
    opened.stream->Close({Code::kProtocol, "of another job"});
    EXPECT_EQ(opened.stream->Send("more").code(), Code::kCancelled);
  });
  EXPECT_EQ(NextOf(*opened.client).body, "last words");
  EXPECT_EQ(NextOf(*opened.client).reason,
            Status(Code::kProtocol, "the controller says of this process: of another job"));
  EXPECT_FALSE(opened.client->active());
  for (auto told = server.Next(); told.what != "closed"; told = server.Next())
    ASSERT_EQ(told.what, "message");
}

TEST(StreamServer, IsToldWhyAClientCloses) {
  TestServer server;
  server.Start();
  const Opened opened = OpenTo(server);
  ASSERT_TRUE(opened.client->Send("last words").ok());
  opened.client->Close({Code::kCancelled, "this worker has left"});
  EXPECT_EQ(NextOf(*opened.client).kind, EventKind::kClosed);
  EXPECT_EQ(server.Next().body, "last words");
  EXPECT_EQ(server.Next().reason, Status(Code::kCancelled, "this worker has left"));
}

TEST(StreamServer, NoticesClientsThatAreGone) {
  TestServer server;
  server.Start();
  Opened opened = OpenTo(server);
  opened.client.reset();
  const auto told = server.Next();
  EXPECT_EQ(told.what, "closed");
  EXPECT_EQ(told.reason.code(), Code::kUnavailable);
  server.Do([&] {
    EXPECT_EQ(opened.stream->Send("x").code(), Code::kCancelled);
    opened.stream->Resume();
    opened.stream->Close(told.reason);
    opened.stream->Abort(told.reason);
  });
}

TEST(StreamServer, AbortsAtOnce) {
  TestServer server;
  server.Start();
  const Opened opened = OpenTo(server);
  server.Do([&] { opened.stream->Abort({Code::kPeerDead, "declared dead"}); });
  EXPECT_EQ(server.Next().reason, Status(Code::kPeerDead, "declared dead"));
  EXPECT_EQ(NextOf(*opened.client).kind, EventKind::kClosed);
}

TEST(StreamServer, HearsNothingWhilePausedAndAllAfterwards) {
  TestServer server;
  server.also = [](const TestServer::Told& told) {
    if (told.what == "message") told.stream->Pause();
  };
  server.Start();
  const Opened opened = OpenTo(server);
  constexpr int kMessages = 40;  // More than a turn's share, decrypted at once.
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(opened.client->Send(StrCat(i)).ok());
  (void)opened.client->Next(Clock::now());
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_EQ(server.Next().body, StrCat(i));
    server.Do([] {});
    EXPECT_TRUE(server.silent()) << "paused after each message";
    server.Do([&] { opened.stream->Resume(); });
  }
}

TEST(StreamServer, DeliversWhatIsDecryptedWithoutMoreBytes) {
  TestServer server;
  server.Start();
  const Opened opened = OpenTo(server);
  constexpr int kMessages = 1000;  // Many turns' shares in one record.
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(opened.client->Send(StrCat(i)).ok());
  (void)opened.client->Next(Clock::now());
  for (int i = 0; i < kMessages; ++i) ASSERT_EQ(server.Next().body, StrCat(i));
}

TEST(StreamServer, APausedStreamWhoseClientLeftEndsWhenItGoesOn) {
  TestServer server;
  server.also = [](const TestServer::Told& told) {
    if (told.what == "message") told.stream->Pause();
  };
  server.Start();
  Opened opened = OpenTo(server);
  ASSERT_TRUE(opened.client->Send("first").ok());
  ASSERT_TRUE(opened.client->Send("second").ok());
  (void)opened.client->Next(Clock::now());
  EXPECT_EQ(server.Next().body, "first");
  opened.client.reset();
  server.Do([&] { opened.stream->Resume(); });
  EXPECT_EQ(server.Next().body, "second");
  server.Do([&] { opened.stream->Resume(); });
  EXPECT_EQ(server.Next().what, "closed");
}

/// The poller no longer watches it then: what had come before is delivered, and then its end.
TEST(StreamServer, APausedStreamWhoseConnectionWasResetEndsWhenItGoesOn) {
  TestServer server;
  server.also = [](const TestServer::Told& told) {
    if (told.body == "first") told.stream->Pause();
  };
  server.Start();
  Opened opened = OpenTo(server);
  ASSERT_TRUE(opened.client->Send("first").ok());
  (void)opened.client->Next(Clock::now());
  EXPECT_EQ(server.Next().body, "first");
  // The client goes with bytes that it has not read, which resets the connection.
  ASSERT_TRUE(opened.client->Send("second").ok());
  (void)opened.client->Next(Clock::now());
  server.Send(opened.stream, "unread");
  opened.client.reset();
  for (int turn = 0; turn < 3; ++turn) server.Do([] {});  // It hears of the reset.
  server.Do([&] { opened.stream->Resume(); });
  std::string what = "message";
  while (what == "message") what = server.Next().what;
  EXPECT_EQ(what, "closed");
}

TEST(StreamServer, ClosesAPausedStreamThatHasMoreToSay) {
  TestServer server;
  server.also = [](const TestServer::Told& told) {
    if (told.what == "message") told.stream->Pause();
  };
  server.Start();
  const Opened opened = OpenTo(server);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(opened.client->Send(StrCat(i)).ok());
  (void)opened.client->Next(Clock::now());
  EXPECT_EQ(server.Next().body, "0");
  server.Do([&] { opened.stream->Close({Code::kProtocol, "enough"}); });
  EXPECT_EQ(NextOf(*opened.client).reason,
            Status(Code::kProtocol, "the controller says of this process: enough"));
  EXPECT_EQ(server.Next().reason, Status(Code::kProtocol, "enough"));
}

TEST(StreamServer, DropsASlowReaderAndKeepsNoMoreForItThanItMay) {
  constexpr size_t kMost = size_t{1} << 20;
  TestServer server;
  server.Start(kMost);
  const Opened slow = OpenTo(server);
  const Opened quick = OpenTo(server, {Role::kInference});
  size_t most = 0;
  Status status;
  // The kernel's buffers take some megabytes; the client never reads.
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    server.Do([&] {
      status = slow.stream->Send(std::string(size_t{64} << 10, 'x'));
      most = std::max(most, slow.stream->queued());
    });
  }
  EXPECT_EQ(status.code(), Code::kExhausted) << status.ToString();
  EXPECT_LE(most, kMost);
  const auto told = server.Next();
  EXPECT_EQ(told.what, "closed");
  EXPECT_EQ(told.stream, slow.stream);
  EXPECT_THAT(told.reason.message(), HasSubstr("does not read"));
  server.Send(quick.stream, "still here");
  EXPECT_EQ(NextOf(*quick.client).body, "still here");
}

TEST(StreamServer, TellsOfRoomSoThatLargeMessagesNeedNoLargeQueue) {
  constexpr int kPieces = 64;
  const std::string piece(size_t{256} << 10, 'p');
  std::shared_ptr<ServerStream> stream;
  int sent = 0;
  const auto fill = [&](const std::shared_ptr<ServerStream>& to) {
    while (sent < kPieces && to->queued() < kLowWater) {
      ASSERT_TRUE(to->Send(piece).ok());
      ++sent;
    }
  };
  auto server = StreamServer::Start({.host = "127.0.0.1",
                                     .version = kVersion,
                                     .master = Master(),
                                     .lease = kLong,
                                     .most_queued = size_t{1} << 20,
                                     .handlers = {.on_open = fill,
                                                  .on_message = [](const auto&, std::string) {},
                                                  .on_room = fill,
                                                  .on_closed = [](const auto&, const Status&) {}}});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const auto client = NewClient();
  ASSERT_TRUE(
      ConnectStream(*client, StrCat("127.0.0.1:", (*server)->port()), TokenOf({Role::kTrainer})).ok());
  for (int i = 0; i < kPieces; ++i) {
    const auto event = NextOf(*client);
    ASSERT_EQ(event.kind, EventKind::kMessage) << event.reason.ToString();
    ASSERT_EQ(event.body.size(), piece.size());
  }
  (*server)->Stop();
}

TEST(StreamServer, ShakesHandsWithFarMoreThanItDoesAtOnce) {
  constexpr int kThreads = 8;
  constexpr int kEach = 16;
  TestServer server;
  server.Start(size_t{4} << 20, 20s, kVersion, /*most_handshakes=*/2);
  std::vector<std::thread> threads;
  std::atomic<int> connected{0};
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < kEach; ++j) {
        const auto client = NewClient();
        const Status status = ConnectStream(*client, server.address(), TokenOf({Role::kTrainer}));
        EXPECT_TRUE(status.ok()) << status.ToString();
        connected += status.ok() ? 1 : 0;
        client->Abort();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(connected, kThreads * kEach);
}

TEST(StreamServer, StopsWithStreamsOpen) {
  TestServer server;
  server.Start();
  const Opened opened = OpenTo(server);
  server.server().Stop();
  EXPECT_EQ(NextOf(*opened.client).kind, EventKind::kClosed);
  EXPECT_TRUE(server.silent());
  EXPECT_EQ(opened.stream->Send("x").code(), Code::kCancelled);
}

}  // namespace
}  // namespace weightcast::stream
