#include "peertest/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>
#include <thread>

#include "base/strings.h"
#include "peertest/caller.h"
#include "peertest/port_counts.h"
#include "peertest/test.h"
#include "protocol/worker_messages.h"
#include "stream/client.h"
#include "stream/server.h"

namespace weightcast::peertest {
namespace {

using ::testing::HasSubstr;

constexpr const char* kMaster = "91f2c5d08b3a47e6a1d90c4be8f37265";
constexpr const char* kOther = "0b7de44a92c8135f6e01ab39d7f2885c";
constexpr auto kLong = std::chrono::seconds(30);

stream::MasterToken Master(const char* text = kMaster) { return *stream::MasterToken::Parse(text); }
stream::RoleToken TokenOf(stream::Role role, const char* text = kMaster) {
  return *stream::RoleToken::Derive(Master(text), {.role = role});
}

class Serving : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started =
        TestServer::Start({.host = "127.0.0.1", .master = Master(), .on_over = [this] { ++over_; }});
    ASSERT_TRUE(started.ok()) << started.status().message();
    server_ = std::move(*started);
  }
  [[nodiscard]] std::string target() const { return StrCat("127.0.0.1:", static_cast<int>(server_->port())); }
  [[nodiscard]] Caller::Opened Call(stream::Role role = stream::Role::kTrainer,
                                    const char* token = kMaster) const {
    return Caller::Connect({.address = target(), .token = TokenOf(role, token), .deadline = In(kLong)});
  }

  std::atomic<int> over_{0};
  std::unique_ptr<TestServer> server_;
};

TEST_F(Serving, AWholeTestFindsWhatIsThere) {
  std::vector<std::string> steps;
  const PeerFacts facts = RunTest(target(), {.seconds = 0.05},
                                  {.token = TokenOf(stream::Role::kTrainer),
                                   .on_step = [&](std::string_view step) { steps.emplace_back(step); }});
  EXPECT_EQ(facts.failure.stage, "") << facts.failure.text;
  EXPECT_EQ(facts.there.host, facts.here.host);
  EXPECT_EQ(facts.there.address, "127.0.0.1");
  EXPECT_EQ(facts.there.interface, "lo");
  EXPECT_LT(std::abs(facts.clock_ahead), 1);
  EXPECT_EQ(facts.mtu.error, "");
  EXPECT_EQ(facts.mtu.out, facts.mtu.back);
  EXPECT_GE(facts.mtu.out, 1500);
  EXPECT_EQ(facts.ports.tried_out, 1);
  EXPECT_EQ(facts.ports.tried_back, 1);
  EXPECT_TRUE(facts.ports.out.empty() && facts.ports.back.empty());
  ASSERT_EQ(facts.transports.size(), 2U);
  const TransportFacts& tcp = facts.transports.front();
  EXPECT_EQ(tcp.error, "");
  EXPECT_THAT(tcp.connection, HasSubstr("tcp"));
  EXPECT_GT(tcp.latency.samples, 0);
  EXPECT_GT(tcp.latency.p50, 0);
  EXPECT_LE(tcp.latency.p50, tcp.latency.p99);
  ASSERT_FALSE(tcp.out.empty());
  EXPECT_GT(tcp.out.front().gbit, 0);
  EXPECT_GT(tcp.back.front().gbit, 0);
  EXPECT_GT(tcp.both_out, 0);
  EXPECT_EQ(facts.classes.error, "");
  EXPECT_GT(facts.classes.plain_idle.samples, 0);
  EXPECT_GT(facts.classes.class_loaded.samples, 0);
  EXPECT_GT(facts.classes.class_marked.samples, 0);
  EXPECT_FALSE(steps.empty());
  EXPECT_EQ(over_, 1);
}

TEST_F(Serving, AnotherTokenIsRefused) {
  const PeerFacts facts =
      RunTest(target(), {.seconds = 0.05}, {.token = TokenOf(stream::Role::kTrainer, kOther)});
  EXPECT_EQ(facts.failure.stage, "token");
  EXPECT_THAT(facts.failure.text, HasSubstr("the host that serves"));
}

TEST_F(Serving, AnObserverMayNotMeasure) {
  auto opened = Caller::Connect(
      {.address = target(), .token = TokenOf(stream::Role::kObserver), .deadline = In(kLong)});
  // An observer has no key of this purpose at all.
  EXPECT_EQ(opened.caller, nullptr);
  EXPECT_EQ(opened.failure.stage, "token");
}

TEST_F(Serving, OneTestAtATime) {
  auto first = Call();
  auto second = Call();
  ASSERT_NE(first.caller, nullptr);
  ASSERT_NE(second.caller, nullptr);
  ASSERT_TRUE(first.caller->Ask<Echo>(AskBegin{.address = "127.0.0.1"}, kLong).ok());
  const auto refused = second.caller->Ask<Echo>(AskBegin{.address = "127.0.0.1"}, kLong);
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("busy with a test with 127.0.0.1"));
  const PeerFacts facts = RunTest(target(), {.seconds = 0.05}, {.token = TokenOf(stream::Role::kTrainer)});
  EXPECT_EQ(facts.failure.stage, "busy");
  // Who goes without a word leaves the place free.
  first.caller.reset();
  Result<Echo> taken = refused;
  for (const TimePoint until = In(kLong); !taken.ok() && Clock::now() < until;)
    taken = second.caller->Ask<Echo>(AskBegin{.address = "127.0.0.1"}, kLong);
  EXPECT_TRUE(taken.ok()) << taken.status().message();
}

TEST_F(Serving, QuestionsOutOfOrderAreRefused) {
  auto opened = Call();
  ASSERT_NE(opened.caller, nullptr);
  EXPECT_EQ(opened.caller->Ask<Wrote>(AskWrite{.bytes = 1, .seconds = 0.1}, kLong).status().code(),
            Code::kProtocol);
  ASSERT_TRUE(opened.caller->Ask<Echo>(AskBegin{.address = "127.0.0.1"}, kLong).ok());
  EXPECT_EQ(opened.caller->Ask<Wrote>(AskWrite{.bytes = 1, .seconds = 0.1}, kLong).status().code(),
            Code::kProtocol);
  EXPECT_EQ(opened.caller->Ask<Done>(AskMeet{.place = {.incarnation = 1}}, kLong).status().code(),
            Code::kProtocol);
}

TEST_F(Serving, CountersAreThereAtAnyTimeOfATest) {
  auto opened = Call();
  ASSERT_NE(opened.caller, nullptr);
  ASSERT_TRUE(opened.caller->Ask<Echo>(AskBegin{.address = "127.0.0.1"}, kLong).ok());
  const auto counters = opened.caller->Ask<Counters>(AskCounters{}, kLong);
  ASSERT_TRUE(counters.ok()) << counters.status().message();
  EXPECT_EQ(counters->ports.size(), ReadPortCounts().size());
}

TEST_F(Serving, ConnectsToNobodyButTheHostThatAsks) {
  auto opened = Call();
  ASSERT_NE(opened.caller, nullptr);
  ASSERT_TRUE(opened.caller->Ask<Echo>(AskBegin{.address = "127.0.0.1"}, kLong).ok());
  const auto reached = opened.caller->Ask<Reached>(AskReach{.addresses = {"127.0.0.2:1"}}, kLong);
  EXPECT_EQ(reached.status().code(), Code::kPermission);
}

TEST_F(Serving, AnOrderTestsAThirdHost) {
  auto third = TestServer::Start({.host = "127.0.0.1", .master = Master()});
  ASSERT_TRUE(third.ok());
  auto opened = Call();
  ASSERT_NE(opened.caller, nullptr);
  const std::string target = StrCat("127.0.0.1:", static_cast<int>((*third)->port()));
  const auto ordered = opened.caller->Ask<Ordered>(
      AskOrder{.target = target, .plan = {.seconds = 0.05, .all_sizes = false, .classes = false}}, 2 * kLong);
  ASSERT_TRUE(ordered.ok()) << ordered.status().message();
  std::string report;
  while (report.size() < ordered->bytes) {
    const auto piece = opened.caller->Ask<ReportPiece>(AskPiece{.from = report.size()}, kLong);
    ASSERT_TRUE(piece.ok());
    ASSERT_FALSE(piece->text.empty());
    report += piece->text;
  }
  const auto facts = DecodeFacts(report);
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->failure.stage, "") << facts->failure.text;
  EXPECT_EQ(facts->target, target);
  EXPECT_GT(facts->transports.at(0).out.at(0).gbit, 0);
}

TEST_F(Serving, AnObserversStreamIsClosedWithTheReason) {
  auto stream = stream::ClientStream::Create();
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE((*stream)
                  ->Connect({.address = target(),
                             .version = protocol::kProtocolVersion,
                             .token = TokenOf(stream::Role::kObserver),
                             .purpose = stream::Purpose::kObserve,
                             .lease = kLong})
                  .ok());
  stream::ClientStream::Event event;
  for (const TimePoint until = In(kLong);
       event.kind != stream::ClientStream::Event::Kind::kClosed && Clock::now() < until;)
    event = (*stream)->Next(until);
  EXPECT_EQ(event.reason.code(), Code::kPermission);
  EXPECT_THAT(event.reason.message(), HasSubstr("may not measure"));
}

TEST_F(Serving, AStopEndsTheTestThatRuns) {
  std::promise<void> measures;
  std::thread tester([&] {
    const PeerFacts facts =
        RunTest(target(), {.seconds = 4},
                {.token = TokenOf(stream::Role::kTrainer), .on_step = [&](std::string_view step) {
                   if (step == "tcp") measures.set_value();
                 }});
    ASSERT_FALSE(facts.transports.empty());
    EXPECT_NE(facts.transports.front().error, "");
  });
  measures.get_future().wait();
  const TimePoint begin = Clock::now();
  server_.reset();
  EXPECT_LT(Seconds(Clock::now() - begin), 10);
  tester.join();
}

TEST(OtherVersion, IsSaidInOneLine) {
  auto other = stream::StreamServer::Start({.host = "127.0.0.1",
                                            .version = protocol::kProtocolVersion + 1,
                                            .master = Master(),
                                            .lease = kLong,
                                            .handlers = {.on_open = [](const auto&) {},
                                                         .on_message = [](const auto&, const auto&) {},
                                                         .on_closed = [](const auto&, const auto&) {}}});
  ASSERT_TRUE(other.ok());
  const PeerFacts facts = RunTest(StrCat("127.0.0.1:", static_cast<int>((*other)->port())), {.seconds = 0.05},
                                  {.token = TokenOf(stream::Role::kTrainer)});
  EXPECT_EQ(facts.failure.stage, "version");
  EXPECT_THAT(facts.failure.text, HasSubstr("another version of the protocol"));
  EXPECT_EQ(facts.failure.text.find('\n'), std::string::npos);
}

TEST(Unreachable, IsSaid) {
  const PeerFacts facts =
      RunTest("127.0.0.1:1", {.seconds = 0.05}, {.token = TokenOf(stream::Role::kTrainer)});
  EXPECT_EQ(facts.failure.stage, "reach");
  EXPECT_THAT(facts.failure.text, HasSubstr("refused"));
}

}  // namespace
}  // namespace weightcast::peertest
