#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <thread>

#include "base/bytes.h"
#include "base/socket.h"
#include "child_process.h"
#include "endpoint/handshake.h"
#include "stream/token.h"
#include "unit/endpoint/party.h"

namespace weightcast::endpoint {
namespace {

using ::testing::HasSubstr;
using ConnectTest = EndpointTest;

size_t OpenDescriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST_F(ConnectTest, ProvesWhoIsWho) {
  Party a({.role = "trainer", .rank = 3});
  Party b({.role = "inference", .rank = 1});
  auto to_b = a.Connect(b);
  ASSERT_TRUE(to_b.ok()) << to_b.status().ToString();
  const Connection to_a = b.Accepted();
  EXPECT_EQ(to_b->peer(), b->self());
  EXPECT_EQ(to_a.peer(), a->self());
  EXPECT_EQ(to_b->address(), b->Addresses()[0]);
  EXPECT_EQ(to_a.address(), a->Addresses()[0]) << "where it listens, not where it called from";
  EXPECT_EQ(to_b->transport_name(), "fast");
  EXPECT_EQ(to_b->Describe(),
            "fast: in this process, 2 lanes, to engine rollout rank 1 at " + b->Addresses()[0]);
  EXPECT_EQ(to_a.Describe(), "fast: in this process, 2 lanes, to trainer 3 at " + a->Addresses()[0]);
  EXPECT_TRUE(a->Find(b->self().incarnation).has_value());
  EXPECT_TRUE(b->Find(a->self().incarnation).has_value());
  EXPECT_FALSE(a->Find(77).has_value());
  ASSERT_EQ(a->Peers().size(), 1U);
  EXPECT_EQ(a->Peers()[0].identity, b->self());
  EXPECT_EQ(to_b->peer_chunk(), 4096U);
}

TEST_F(ConnectTest, ACallbackMayKeepItsConnection) {
  struct Kept {
    std::atomic<bool> called = false;
    std::optional<Connection> connection;
  };
  auto kept = std::make_shared<Kept>();
  const std::weak_ptr<Kept> left = kept;
  EndpointOptions options;
  options.self = {"test", "inference", "rollout", 0, RandomId()};
  options.token = PartyOptions().token;
  options.settings = Party::SettingsOf({});
  options.on_connection = [kept](Connection connection) {
    kept->connection = std::move(connection);
    kept->called = true;
    kept->called.notify_one();
  };
  auto endpoint = CreateWith(std::move(options), kFakeFactories);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status().ToString();
  Party a;
  const auto to_it = a->Connect((*endpoint)->Addresses(), (*endpoint)->self(), In(kPatience));
  ASSERT_TRUE(to_it.ok()) << to_it.status().ToString();
  kept->called.wait(false);
  kept.reset();
  EXPECT_FALSE(left.expired());
  endpoint->reset();
  EXPECT_TRUE(left.expired()) << "callback, connection and endpoint keep each other";
}

TEST_F(ConnectTest, AgainGivesTheSameConnection) {
  Party a;
  Party b({.rank = 1});
  ASSERT_TRUE(a.Connect(b).ok());
  ASSERT_TRUE(a.Connect(b).ok());
  b.Accepted();
  ASSERT_TRUE(b.Connect(a).ok());
  EXPECT_EQ(b.accepted(), 1U);
  EXPECT_EQ(a.accepted(), 0U);
  EXPECT_EQ(a.fast().links(), 1U);
}

TEST_F(ConnectTest, ManyCallersAtOnceGetOneConnection) {
  Party a;
  Party b({.rank = 1});
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      auto connection = a.Connect(b);
      EXPECT_TRUE(connection.ok()) << connection.status().ToString();
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(a->Peers().size(), 1U);
  EXPECT_TRUE(Eventually([&] { return a.fast().links() == 1 && b.fast().links() == 1; }));
  EXPECT_EQ(a.disconnects(), 0U);
}

TEST_F(ConnectTest, BothSidesAtOnceMakeOneConnection) {
  for (int round = 0; round < 50; ++round) {
    Party a;
    Party b({.rank = 1});
    std::atomic<int> ready = 0;
    const auto meet = [&](const Party& from, const Party& to) {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      auto connection = from.Connect(to);
      ASSERT_TRUE(connection.ok()) << connection.status().ToString();
      EXPECT_TRUE(connection->status().ok());
      EXPECT_TRUE(connection->Write({}, {})->Wait().ok());
    };
    std::thread other([&] { meet(b, a); });
    meet(a, b);
    other.join();
    EXPECT_EQ(a->Peers().size(), 1U);
    EXPECT_EQ(b->Peers().size(), 1U);
    EXPECT_EQ(a.disconnects() + b.disconnects(), 0U);
    EXPECT_TRUE(Eventually([&] { return a.fast().links() == 1 && b.fast().links() == 1; }));
  }
}

TEST_F(ConnectTest, AWrongTokenIsRefusedOnBothSides) {
  Party a({.token = "the-token-of-the-one-side"});
  Party b({.rank = 1, .token = "the-token-of-the-other"});
  ::testing::internal::CaptureStderr();
  const Status status = a.Connect(b).status();
  EXPECT_EQ(status.code(), Code::kPermission);
  EXPECT_THAT(status.message(), HasSubstr("trainer 0"));
  EXPECT_THAT(status.message(),
              HasSubstr("does not know the job token of trainer 1; give both the same WEIGHTCAST_TOKEN"));
  EXPECT_EQ(b.accepted(), 0U);
  b.Destroy();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("does not know the job token"));
}

TEST_F(ConnectTest, AKeyOfAPairIsOfThisPairAlone) {
  const auto key_of = [](const Identity& peer) { return "key of " + ToString(peer); };
  Party b({.role = "inference", .key_of = key_of});
  Party a;
  const auto connect = [&](const Party& from, const std::string& key) {
    return from->Connect(b->Addresses(), b->self(), Soon(), key).status();
  };
  for (const char* wrong : {"", "key of trainer 1", "secret"}) {
    const Status status = connect(a, wrong);
    EXPECT_EQ(status.code(), Code::kPermission) << wrong;
    EXPECT_THAT(status.message(), HasSubstr("does not have the key that the controller gives"));
  }
  EXPECT_EQ(b.accepted(), 0U);
  // With the key of another one, and as if it were that one.
  Party liar({.rank = 1});
  EXPECT_EQ(connect(liar, "key of trainer 0").code(), Code::kPermission);
  EXPECT_TRUE(connect(a, "key of trainer 0").ok());
}

TEST_F(ConnectTest, ALiveConnectionIsReplacedByNobodyWithoutItsKey) {
  const auto key_of = [](const Identity& peer) { return "key of " + ToString(peer); };
  Party b({.role = "inference", .key_of = key_of});
  Party a;
  ASSERT_TRUE(a->Connect(b->Addresses(), b->self(), Soon(), "key of trainer 0").ok());
  const Connection live = b.Accepted();
  Party twin({.incarnation = a->self().incarnation});
  EXPECT_EQ(twin->Connect(b->Addresses(), b->self(), Soon()).status().code(), Code::kPermission);
  EXPECT_TRUE(b->Find(a->self().incarnation).has_value());
  EXPECT_EQ(b.disconnects(), 0U);
  EXPECT_EQ(b.accepted(), 1U);
}

TEST_F(ConnectTest, ATokenAndThoseMadeFromItMeet) {
  const std::string master = PartyOptions{}.token;
  const auto role = [&](stream::Role which) {
    const auto made = stream::RoleToken::Derive(*stream::MasterToken::Parse(master), {.role = which});
    return std::string(made->Print().bytes());
  };
  Party a({.token = master});
  uint32_t rank = 0;
  for (const std::string& token : {master + "\n", role(stream::Role::kPeer), role(stream::Role::kTrainer)}) {
    Party b({.rank = ++rank, .token = token});
    EXPECT_TRUE(a.Connect(b).ok()) << rank;
  }
}

TEST_F(ConnectTest, AnotherJobIsRefused) {
  Party a({.job = "red"});
  Party b({.job = "blue"});
  Identity expected = b->self();
  const Status status = a->Connect(b->Addresses(), expected, Soon()).status();
  EXPECT_EQ(status.code(), Code::kPermission);
  EXPECT_THAT(status.message(), HasSubstr("of job 'red'"));
  EXPECT_THAT(status.message(), HasSubstr("of job 'blue'"));
}

TEST_F(ConnectTest, AnotherRankIsNotWhoWasExpected) {
  Party a;
  Party b({.role = "inference", .rank = 1});
  Identity expected = b->self();
  expected.rank = 0;
  Status status = a->Connect(b->Addresses(), expected, Soon()).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(),
              HasSubstr("expected engine rollout rank 0 but engine rollout rank 1 answers"));
  expected = b->self();
  ++expected.incarnation;
  status = a->Connect(b->Addresses(), expected, Soon()).status();
  EXPECT_THAT(status.message(), HasSubstr("engine rollout rank 1 has restarted"));
  expected.incarnation = 0;
  EXPECT_TRUE(a->Connect(b->Addresses(), expected, Soon()).ok());
}

TEST_F(ConnectTest, AnyoneOfTheJob) {
  Party a;
  Party b({.rank = 5});
  auto connection = a->Connect(b->Addresses(), {}, Soon());
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  EXPECT_EQ(connection->peer(), b->self());
}

TEST_F(ConnectTest, AdmitDecidesOnBothSides) {
  const auto refuse = [](const Identity& peer) {
    return peer.rank == 9 ? Status(Code::kPermission, "rank 9 is not of this plan") : Status::Ok();
  };
  Party a({.rank = 9});
  Party b({.rank = 1, .admit = refuse});
  Status status = a.Connect(b).status();
  EXPECT_EQ(status.code(), Code::kPermission);
  EXPECT_THAT(status.message(), HasSubstr("rank 9 is not of this plan"));
  status = b.Connect(a).status();
  EXPECT_EQ(status.code(), Code::kPermission);
  Party c({.rank = 2});
  EXPECT_TRUE(c.Connect(b).ok());
}

TEST_F(ConnectTest, NobodyThereIsSaidAtOnce) {
  Party a;
  std::string address;
  {
    const Party gone;
    address = gone->Addresses()[0];
  }
  const TimePoint begin = Clock::now();
  const Status status =
      a->Connect({address}, {.job = "test", .role = "trainer", .engine = "", .rank = 4}, Soon()).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("trainer 4"));
  EXPECT_THAT(status.message(), HasSubstr(address));
  EXPECT_THAT(status.message(), HasSubstr("Connection refused"));
  EXPECT_LT(Clock::now() - begin, kPatience / 2);
}

TEST_F(ConnectTest, BadAddressesAreSaid) {
  Party a;
  EXPECT_EQ(a->Connect({}, {}, Soon()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(a->Connect({"nonsense"}, {}, Soon()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(a->Connect({"no-such-host.invalid:1"}, {}, Soon()).status().code(), Code::kUnavailable);
}

TEST_F(ConnectTest, ASilentAddressDelaysButDoesNotStop) {
  Party a;
  Party b({.rank = 1});
  // One that accepts and says nothing, one that refuses, then the right one.
  auto silent = Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
  const std::string silent_address = LocalAddressOf(silent->get())->ToString();
  auto connection = a->Connect({silent_address, "127.0.0.1:1", b->Addresses()[0]}, b->self(), Soon());
  EXPECT_TRUE(connection.ok()) << connection.status().ToString();
  const TimePoint begin = Clock::now();
  const Status status =
      a->Connect({silent_address}, {.job = "test", .role = "trainer", .engine = "", .rank = 4},
                 begin + FromSeconds(0.05))
          .status();
  EXPECT_EQ(status.code(), Code::kTimedOut);
}

TEST_F(ConnectTest, ACallerCanBeInterrupted) {
  std::atomic<bool> interrupted{true};
  std::thread::id asked;
  Party a({.interrupted = [&] {
    asked = std::this_thread::get_id();
    return interrupted.load();
  }});
  Party b({.rank = 1});
  auto silent = Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
  const std::string address = LocalAddressOf(silent->get())->ToString();
  const Status status = a->Connect({address}, {}, Soon()).status();
  EXPECT_EQ(status.code(), Code::kCancelled) << status.ToString();
  EXPECT_EQ(asked, std::this_thread::get_id());
  interrupted = false;
  EXPECT_TRUE(a.Connect(b).ok()) << "only that call was interrupted";
}

TEST_F(ConnectTest, StrangersAtTheListenerDoNoHarm) {
  Party a;
  Party b({.rank = 1});
  const SocketAddress listener = *SocketAddress::Parse(b->Addresses()[0]);
  std::vector<UniqueFd> strangers;
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(5, '\0'), std::string("\x05\0\0\0\x01hello", 10),
        std::string("\xff\xff\xff\xff\x01", 5), std::string("\0\0\0\0\x14", 5), std::string()}) {
    auto fd = weightcast::Connect(listener, Soon());
    ASSERT_TRUE(fd.ok());
    ASSERT_TRUE(SendAll(fd->get(), words, Soon()).ok());
    strangers.push_back(std::move(fd).value());
  }
  // More half-open handshakes than are kept: the oldest go, we still come in.
  for (int i = 0; i < 300; ++i) strangers.push_back(std::move(weightcast::Connect(listener, Soon())).value());
  EXPECT_TRUE(a.Connect(b).ok());
}

/// Opens connections that say `words` and nothing more, until it is destroyed.
class Flood {
 public:
  Flood(const SocketAddress& listener, std::string words)
      : thread_([this, listener, words = std::move(words)] {
          std::deque<UniqueFd> open;
          while (!stop_) {
            auto fd = weightcast::Connect(listener, Soon());
            if (!fd.ok()) continue;
            (void)send(fd->get(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            open.push_back(std::move(fd).value());
            if (open.size() > 400) open.pop_front();
            ++opened_;
          }
        }) {
    EXPECT_TRUE(Eventually([this] { return opened_ >= 600; }));
  }
  ~Flood() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> opened_{0};
  std::thread thread_;
};

TEST_F(ConnectTest, AFloodOfHalfOpenHandshakesStopsNobody) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 1024;  // So that the place is full at once.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  Party a;
  Party b({.rank = 1});
  Hello hello{.port = 1, .identity = a->self(), .boot_id = "", .chunk = 4096, .lease = FromSeconds(1)};
  hello.identity.incarnation = 99;
  ByteWriter framed;
  const std::string payload = EncodeHello(hello);
  framed.Put(static_cast<uint32_t>(payload.size()));
  framed.Put(static_cast<uint8_t>(MessageType::kHello));
  framed.PutRaw(payload);
  const std::string whole = framed.Take();
  ::testing::internal::CaptureStderr();
  const TimePoint begin = Clock::now();
  for (const std::string& words : {std::string(), std::string(1, 'x'), whole}) {
    const Flood flood(*SocketAddress::Parse(b->Addresses()[0]), words);
    for (int i = 0; i < 5; ++i) {
      Party more({.rank = 2});
      const auto connection = more.Connect(b);
      EXPECT_TRUE(connection.ok()) << words.size() << ": " << connection.status().ToString();
    }
  }
  const double took = Seconds(Clock::now() - begin);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(static_cast<double>(std::count(log.begin(), log.end(), '\n')), 2 + took) << log;
  EXPECT_TRUE(a.Connect(b).ok());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(ConnectTest, APeerThatHangsUpInTheHandshakeIsAskedAgain) {
  Party a;
  Party b({.rank = 1});
  // Stands in for b: takes connections and closes them, as one does that has too many.
  const UniqueFd busy = std::move(Listen(*SocketAddress::Parse("127.0.0.1:0"), {})).value();
  const std::string address = LocalAddressOf(busy.get())->ToString();
  std::atomic<int> dropped = 0;
  std::atomic<bool> stop = false;
  std::thread dropper([&] {
    while (!stop) {
      if (!WaitFor(busy.get(), POLLIN, Clock::now() + FromSeconds(0.01))) continue;
      auto fd = Accept(busy.get());
      char byte = 0;
      if (fd.ok() && fd->valid() && ReceiveAll(fd->get(), &byte, 1, Soon()).ok()) ++dropped;
    }
  });
  std::thread other([&] {
    EXPECT_TRUE(Eventually([&] { return dropped >= 3; }));
    EXPECT_TRUE(b.Connect(a).ok());
  });
  auto connection = a->Connect({address}, b->self(), Soon());
  EXPECT_TRUE(connection.ok()) << connection.status().ToString();
  other.join();
  stop = true;
  dropper.join();
}

TEST_F(ConnectTest, ASideWithAShortLeaseIsHeardOftenEnough) {
  Party a({.settings = {{"lease", "60"}}});
  Party b({.rank = 1, .settings = {{"lease", "0.3"}}});
  auto connection = a.Connect(b);
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  b.Accepted();
  // Three leases of the one: it must not take the other for dead, whose own lease is far longer.
  const TimePoint end = Clock::now() + FromSeconds(0.9);
  EXPECT_FALSE(Eventually([&] { return b.disconnects() > 0; }, end - Clock::now()));
  EXPECT_TRUE(connection->status().ok());
}

TEST_F(ConnectTest, HalfOpenHandshakesEnd) {
  Party b({.settings = {{"connect_timeout", "0.05"}}});
  auto fd = weightcast::Connect(*SocketAddress::Parse(b->Addresses()[0]), Soon());
  char byte = 0;
  // The verdict, which says that it took too long, or the end.
  while (ReceiveAll(fd->get(), &byte, 1, Soon()).ok()) {
  }
}

// --- Ends ------------------------------------------------------------------------------------------

TEST_F(ConnectTest, CloseIsHeardOnBothSides) {
  Pair pair;
  pair.to_b->Close();
  EXPECT_EQ(pair.a.Disconnected().second.code(), Code::kCancelled);
  const auto [who, why] = pair.b.Disconnected();
  EXPECT_EQ(who, pair.a->self());
  EXPECT_EQ(why.code(), Code::kUnavailable);
  EXPECT_THAT(why.message(), HasSubstr("the peer has ended the connection"));
  EXPECT_TRUE(Eventually([&] { return pair.a.fast().links() + pair.b.fast().links() == 0; }));
  EXPECT_FALSE(pair.a->Find(pair.b->self().incarnation).has_value());
  // And they can meet again.
  auto again = pair.a.Connect(pair.b);
  EXPECT_TRUE(again.ok()) << again.status().ToString();
}

TEST_F(ConnectTest, ADestroyedEndpointIsNoticed) {
  Pair pair;
  pair.to_b.reset();
  pair.source_region.reset();
  pair.a.Destroy();
  EXPECT_EQ(pair.b.Disconnected().second.code(), Code::kUnavailable);
  EXPECT_FALSE(pair.to_a->status().ok());
}

TEST_F(ConnectTest, AThousandConnectionsLeakNothing) {
  Party a;
  Party b({.rank = 1});
  ASSERT_TRUE(a.Connect(b).ok());
  b.Accepted().Close();
  a.Disconnected();
  b.Disconnected();
  size_t before = 0;
  for (size_t i = 1; i <= 1000; ++i) {
    auto connection = a.Connect(b);
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    Connection accepted = b.Accepted(i);  // One that is closed before b has it is nothing to b.
    (i % 2 == 0 ? accepted : *connection).Close();
    a.Disconnected(i);
    b.Disconnected(i);
    if (i == 100) before = OpenDescriptors();
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= before; })) << OpenDescriptors() << " " << before;
  EXPECT_EQ(a.fast().links() + b.fast().links() + a.slow().links() + b.slow().links(), 0U);
}

TEST_F(ConnectTest, AForkedChildKeepsNoPort) {
  Party b;
  const SocketAddress listener = *SocketAddress::Parse(b->Addresses()[0]);
  test::Child child([](const test::Channel& channel) {
    channel.Send("begun");
    channel.Receive();
  });
  EXPECT_EQ(child.channel().Receive(), "begun") << "the child closes its ports as it begins";
  b.Destroy();
  EXPECT_EQ(weightcast::Connect(listener, Soon()).status().code(), Code::kUnavailable);
  EXPECT_TRUE(Listen(listener, {}).ok()) << "while the child runs";
  child.channel().Send("end");
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(ConnectTest, AForkedChildIsToldSo) {
  Pair pair;
  auto write = pair.WriteAll();
  ASSERT_TRUE(write->Wait().ok());
  test::Process child = test::Process::Fork([&] {
    const bool refused = pair.to_b->Write({}, {}).status().code() == Code::kInternal &&
                         pair.a.Connect(pair.b).status().code() == Code::kInternal &&
                         pair.a->Register(pair.source, Access::kRead).status().code() == Code::kInternal &&
                         pair.to_b->OpenGrant({}).status().code() == Code::kInternal;
    write->Cancel();
    pair.to_b->Close();
    pair.source_region.reset();
    pair.target_region.reset();
    pair.a.Destroy();
    pair.b.Destroy();
    return refused ? 0 : 1;
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_TRUE(pair.WriteAll()->Wait().ok());
}

}  // namespace
}  // namespace weightcast::endpoint
