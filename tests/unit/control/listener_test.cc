#include "control/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "control/envelope.h"
#include "protocol/codec.h"
#include "unit/stream/fixture.h"

namespace weightcast::control {
namespace {

using stream::kTrainerMember;
using stream::Purpose;
using ::testing::HasSubstr;

/// A listener that counts what its handlers are told.
class ListenerTest : public ::testing::Test {
 protected:
  void Start(size_t most_streams) {
    auto started = Listener::Start(
        {.host = "127.0.0.1",
         .master = stream::Master(),
         .lease = stream::kLong,
         .most_streams = most_streams,
         .handlers = {
             .on_open = [this](const auto& stream) { Count([&] { workers_.push_back(stream); }); },
             .on_message = [this](const auto&,
                                  auto incoming) { Count([&] { heard_.push_back(std::move(incoming)); }); },
             .on_closed = [this](const auto&, const Status& why) { Count([&] { closed_.push_back(why); }); },
             .on_watch = [this](const auto& sink) { Count([&] { watchers_.push_back(sink); }); },
             .on_ask =
                 [this](const auto& sink, auto ask) {
                   Count([&] { asked_.push_back(ask); });
                   sink->Continue();
                 },
             .on_unwatch = [this](const auto&) { Count([&] { ++unwatched_; }); }}});
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    listener_ = std::move(*started);
  }
  template <typename Change>
  void Count(Change change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <typename Predicate>
  bool Wait(Predicate predicate) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, stream::kLong, predicate);
  }
  std::unique_ptr<stream::ClientStream> Connected(Purpose purpose) {
    auto client = stream::NewClient();
    const Status status =
        stream::ConnectStream(*client, StrCat("127.0.0.1:", listener_->port()),
                              stream::TokenOf(kTrainerMember), purpose, protocol::kProtocolVersion);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return client;
  }
  /// Why the controller ends a stream of this purpose.
  Status WhyEnded(Purpose purpose) { return stream::NextOf(*Connected(purpose)).reason; }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<WorkerStream>> workers_;
  std::vector<std::shared_ptr<ViewSink>> watchers_;
  std::vector<Incoming> heard_;
  std::vector<Status> closed_;
  std::vector<protocol::ObserverMessage> asked_;
  int unwatched_ = 0;
  std::unique_ptr<Listener> listener_;
};

TEST_F(ListenerTest, TheLastQuarterOfStreamsIsForWorkers) {
  Start(8);
  std::vector<std::unique_ptr<stream::ClientStream>> open;
  for (int i = 0; i < 6; ++i) open.push_back(Connected(Purpose::kObserve));
  ASSERT_TRUE(Wait([&] { return watchers_.size() == 6; }));
  const Status observer = WhyEnded(Purpose::kObserve);
  EXPECT_EQ(observer.code(), Code::kExhausted);
  EXPECT_THAT(observer.message(), HasSubstr("6 streams already, too many for another observer"));
  EXPECT_THAT(observer.message(), HasSubstr("raise its limit"));
  for (int i = 0; i < 2; ++i) open.push_back(Connected(Purpose::kControl));
  ASSERT_TRUE(Wait([&] { return workers_.size() == 2; }));
  EXPECT_EQ(WhyEnded(Purpose::kControl).code(), Code::kExhausted);
  open.clear();
  ASSERT_TRUE(Wait([&] { return unwatched_ == 6 && closed_.size() == 2; }));
  open.push_back(Connected(Purpose::kObserve));
  EXPECT_TRUE(Wait([&] { return watchers_.size() == 7; }));
}

TEST_F(ListenerTest, WhoBreaksTheProtocolIsToldAndEnded) {
  Start(0);
  const std::string endless = Enclose(Envelope{.kind = PartKind::kPiece}, "piece");
  const std::string whole = Enclose(Envelope{.number = 1}, "whole");
  const std::pair<std::vector<std::string>, std::string> offences[] = {
      {{"short"}, "a message of 5 bytes"},
      {{std::string(kEnvelopeHead - 1, '\0') + "\x07"}, "unknown kind 7"},
      {{endless, whole}, "between the pieces of another"},
      {{Enclose(Envelope{.number = 1, .kind = PartKind::kLast}, "no piece")}, "piece"},
      {{whole}, ""}};
  size_t ended = 0;
  for (const auto& [bodies, why] : offences) {
    const auto client = Connected(Purpose::kControl);
    for (const std::string& body : bodies) ASSERT_TRUE(client->Send(body).ok());
    const auto event = stream::NextOf(*client);
    ASSERT_EQ(event.kind, stream::EventKind::kClosed) << why;
    EXPECT_THAT(event.reason.message(), HasSubstr(why));
    ++ended;
    ASSERT_TRUE(Wait([&] { return closed_.size() == ended; }));
    EXPECT_TRUE(closed_.back().code() == Code::kProtocol || closed_.back().code() == Code::kCorrupt)
        << closed_.back().ToString();
  }
  EXPECT_TRUE(heard_.empty());
}

TEST_F(ListenerTest, AnObserverMayAskAndNothingElse) {
  Start(0);
  const protocol::ObserverMessage question = protocol::AskUpdates{.model = "policy", .number = 7, .last = 3};
  const auto client = Connected(Purpose::kObserve);
  for (size_t count = 1; count <= 2; ++count) {
    ASSERT_TRUE(client->Send(Enclose({}, protocol::Encode(question))).ok());
    (void)client->Next(Clock::now());  // Sends.
    ASSERT_TRUE(Wait([&] { return asked_.size() == count; }));
    EXPECT_EQ(asked_.back(), question);
  }
  const auto other = Connected(Purpose::kObserve);
  ASSERT_TRUE(
      other->Send(Enclose({}, protocol::Encode(protocol::WorkerMessage(protocol::Heartbeat{})))).ok());
  EXPECT_THAT(stream::NextOf(*other).reason.message(),
              HasSubstr("the controller says of this process: it sent a message of the unknown kind"));
  EXPECT_TRUE(Wait([&] { return unwatched_ == 1; }));
  EXPECT_EQ(asked_.size(), 2U);
}

TEST_F(ListenerTest, NothingIsReadUntilTheMessageBeforeIsHeard) {
  Start(0);
  const auto client = Connected(Purpose::kControl);
  const std::string beat = protocol::Encode(protocol::WorkerMessage(protocol::Heartbeat{}));
  for (uint64_t number = 1; number <= 3; ++number)
    ASSERT_TRUE(client->Send(Enclose(Envelope{.number = number}, beat)).ok());
  (void)client->Next(Clock::now());  // Sends.
  for (size_t count = 1; count <= 3; ++count) {
    ASSERT_TRUE(Wait([&] { return heard_.size() == count; }));
    // Another stream is served meanwhile, so this one would have been heard.
    const auto other = Connected(Purpose::kObserve);
    ASSERT_TRUE(Wait([&] { return watchers_.size() == count; }));
    const std::lock_guard lock(mutex_);
    ASSERT_EQ(heard_.size(), count);
    EXPECT_EQ(heard_.back().number, count);
    workers_.front()->Continue();
  }
}

TEST_F(ListenerTest, AnObserverGetsTheNewestViewAndMayOnlyAsk) {
  Start(0);
  const auto client = Connected(Purpose::kObserve);
  ASSERT_TRUE(Wait([&] { return watchers_.size() == 1; }));
  // Many frames each, and together more than sockets hold for a client that does not read.
  protocol::ClusterView view;
  auto& workers = view.models.emplace_back().workers;
  for (uint64_t i = 1; i <= 16000; ++i) {
    std::string& host = workers.emplace_back().host;
    for (uint64_t j = 1; j <= 12; ++j) host += StrCat((i * 12 + j) * 0x9e3779b97f4a7c15ULL);
  }
  constexpr uint64_t kViews = 8;
  for (uint64_t number = 1; number <= kViews; ++number) {
    view.term.number = number;
    const auto packet = MakePacket(view);
    ASSERT_GT((*packet)->bytes(), size_t{1500} << 10);
    watchers_.front()->Show(*packet);
  }
  Assembler assembler;
  uint64_t newest = 0;
  size_t count = 0;
  while (newest < kViews) {
    auto event = stream::NextOf(*client);
    ASSERT_EQ(event.kind, stream::EventKind::kMessage) << event.reason.ToString();
    auto opened = OpenEnvelope(std::move(event.body));
    ASSERT_TRUE(opened.ok());
    auto whole = assembler.Add(opened->envelope.kind, std::move(opened->part));
    ASSERT_TRUE(whole.ok());
    if (!*whole) continue;
    const auto shown = protocol::DecodeObserverReply(*Unpack(std::move(**whole)));
    ASSERT_TRUE(shown.ok()) << shown.status().ToString();
    const uint64_t term = std::get<protocol::ClusterView>(*shown).term.number;
    EXPECT_GT(term, newest);
    newest = term;
    ++count;
  }
  EXPECT_LT(count, kViews) << "older ones that had not gone out were replaced";
  for (uint64_t from : {7, 9}) {
    const protocol::ObserverMessage question = protocol::AskTrace{from};
    ASSERT_TRUE(client->Send(Enclose({}, protocol::Encode(question))).ok());
    (void)client->Next(Clock::now());  // Sends it.
    ASSERT_TRUE(Wait([&] { return !asked_.empty() && asked_.back() == question; }));
  }
  ASSERT_TRUE(client->Send(Enclose({}, protocol::Encode(protocol::WorkerMessage(protocol::Leave{})))).ok());
  EXPECT_EQ(stream::NextOf(*client).kind, stream::EventKind::kClosed);
  EXPECT_TRUE(Wait([&] { return unwatched_ == 1; }));
}

TEST(Envelope, OpensToWhatWasEnclosed) {
  const Envelope envelope{.number = 7, .acknowledged = 1ULL << 40, .session = ~0ULL, .kind = PartKind::kLast};
  const std::string body = Enclose(envelope, "part");
  EXPECT_EQ(body.size(), kEnvelopeHead + 4);
  const auto opened = OpenEnvelope(body);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->envelope, envelope);
  EXPECT_EQ(opened->part, "part");
}

}  // namespace
}  // namespace weightcast::control
