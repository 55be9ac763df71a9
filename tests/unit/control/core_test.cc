#include "control/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "protocol/codec.h"
#include "protocol/identity.h"
#include "protocol/limits.h"

namespace weightcast::control {
namespace {

constexpr Duration kLongestWait = std::chrono::seconds(20);

/// A stream without a network.
class FakeStream final : public WorkerStream {
 public:
  explicit FakeStream(std::shared_ptr<FakeStream> before = nullptr) : before_(std::move(before)) {}
  [[nodiscard]] const stream::Member& member() const override { return member_; }
  void Bind(std::shared_ptr<SessionLink> link) override {
    const bool alone = before_ == nullptr || before_->link() == nullptr;
    const std::lock_guard lock(mutex_);
    alone_ = alone;
    link_ = std::move(link);
    changed_.notify_all();
  }
  void Kick() override {
    const std::lock_guard lock(mutex_);
    kicked_ = true;
    changed_.notify_all();
  }
  void Continue() override {}
  void CloseWhenIdle(const Status&) override { Kick(); }
  void Abort() override {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

  std::shared_ptr<SessionLink> link() {
    const std::lock_guard lock(mutex_);
    return link_;
  }
  bool WaitBound() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLongestWait, [&] { return link_ != nullptr; });
  }
  bool WaitKicked() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLongestWait, [&] { return kicked_; });
  }
  /// What it is told first; nothing in time: Heartbeat.
  protocol::ControllerMessage First() {
    if (!WaitBound() || !WaitKicked()) return protocol::Heartbeat{};
    const auto outgoing = link()->Next();
    return *protocol::DecodeControllerMessage(outgoing->packet->parts.at(0));
  }
  bool WaitAborted() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLongestWait, [&] { return aborted_; });
  }
  [[nodiscard]] bool aborted() {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }
  /// When it was bound the stream before it was not bound any more.
  [[nodiscard]] bool alone() {
    const std::lock_guard lock(mutex_);
    return alone_;
  }

 private:
  const stream::Member member_{.role = stream::Role::kTrainer};
  const std::shared_ptr<FakeStream> before_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<SessionLink> link_;
  bool kicked_ = false;
  bool aborted_ = false;
  bool alone_ = false;
};

Incoming HelloFor(uint64_t session, char process = 's') {
  protocol::Hello hello;
  hello.job = "default";
  hello.model = "policy";
  hello.world_size = 1;
  hello.secret = std::string(protocol::kSecretBytes, process);
  hello.incarnation = protocol::IncarnationOf(hello.secret);
  return {.number = 0, .acknowledged = 0, .session = session, .message = hello};
}

TEST(Core, AStreamThatIsReplacedTakesNothingMoreFromTheSession) {
  Core core(*Settings::From({}));
  ASSERT_TRUE(core.Start().ok());
  const ListenerHandlers handlers = core.Handlers();
  const auto first = std::make_shared<FakeStream>();
  handlers.on_open(first);
  handlers.on_message(first, HelloFor(0));
  ASSERT_TRUE(first->WaitBound());
  ASSERT_TRUE(first->WaitKicked());
  const auto welcome = first->link()->Next();
  ASSERT_TRUE(welcome);
  ASSERT_NE(welcome->session, 0U);

  // The worker has noticed the break first.
  const auto second = std::make_shared<FakeStream>(first);
  handlers.on_open(second);
  handlers.on_message(second, HelloFor(welcome->session));
  ASSERT_TRUE(second->WaitBound());
  EXPECT_TRUE(second->alone());
}

/// A core, and workers of it that have followed other controllers before.
class CoreTerms : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(core_.Start().ok()); }
  /// A trainer of three comes.
  std::shared_ptr<FakeStream> Come(uint32_t rank, const protocol::Term& followed, uint64_t session = 0,
                                   char process = 's', const char* model = "policy") {
    const auto stream = std::make_shared<FakeStream>();
    Incoming incoming = HelloFor(session, process);
    auto& hello = std::get<protocol::Hello>(incoming.message);
    hello.name.rank = rank;
    hello.world_size = 3;
    hello.model = model;
    hello.term = followed;
    handlers_.on_open(stream);
    handlers_.on_message(stream, std::move(incoming));
    return stream;
  }
  static protocol::Term Welcomed(FakeStream& stream) {
    const auto message = stream.First();
    const auto* welcome = std::get_if<protocol::Welcome>(&message);
    EXPECT_NE(welcome, nullptr);
    return welcome == nullptr ? protocol::Term() : welcome->term;
  }

  Core core_{*Settings::From({})};
  const ListenerHandlers handlers_ = core_.Handlers();
};

TEST_F(CoreTerms, AWorkerThatHasFollowedALaterOneRaisesItAndAllJoinAgain) {
  const auto first = Come(0, {});
  ASSERT_TRUE(first->WaitBound() && first->WaitKicked());
  const auto welcome = first->link()->Next();
  ASSERT_TRUE(welcome);
  const auto told = *protocol::DecodeControllerMessage(welcome->packet->parts.at(0));
  const protocol::Term begun = std::get<protocol::Welcome>(told).term;
  EXPECT_EQ(begun.number, 1U);

  const auto waits = std::make_shared<FakeStream>();
  handlers_.on_open(waits);  // And has not said Hello.
  const protocol::Term raised = Welcomed(*Come(1, {.number = 9, .id = 1}));
  EXPECT_EQ(raised.number, 10U);
  EXPECT_NE(raised.id, begun.id);
  EXPECT_TRUE(first->aborted());
  EXPECT_FALSE(waits->aborted());

  const auto again = Come(0, begun, welcome->session);
  ASSERT_TRUE(again->WaitBound() && again->WaitKicked());
  const auto anew = again->link()->Next();
  ASSERT_TRUE(anew);
  EXPECT_NE(anew->session, welcome->session) << "nothing is left of what it was told before";
  EXPECT_EQ(std::get<protocol::Welcome>(*protocol::DecodeControllerMessage(anew->packet->parts.at(0))).term,
            raised);
}

TEST_F(CoreTerms, NobodyTakesAPlaceByANewTerm) {
  const auto first = Come(0, {});
  const protocol::Term begun = Welcomed(*first);
  // In its place, with a later term: refused, and the term stays.
  const auto message = Come(0, {.number = 5, .id = 1}, 0, 'x')->First();
  const auto* refused = std::get_if<protocol::Refused>(&message);
  ASSERT_NE(refused, nullptr);
  EXPECT_THAT(refused->reason.message(), testing::HasSubstr("rank taken"));
  EXPECT_FALSE(first->aborted());
  // As a rank of a model of its own: all join again, each in its own place.
  const protocol::Term raised = Welcomed(*Come(0, {.number = 5, .id = 1}, 0, 'x', "another"));
  EXPECT_EQ(raised.number, 6U);
  EXPECT_TRUE(first->aborted());
  const auto thief = Come(0, {.number = 9, .id = 1}, 0, 'x');
  EXPECT_TRUE(thief->WaitAborted()) << "it may come again later";
  EXPECT_EQ(thief->link(), nullptr);
  EXPECT_EQ(Welcomed(*Come(0, begun)), raised);
}

TEST_F(CoreTerms, OfEqualNumbersTheHigherIdCounts) {
  const protocol::Term begun = Welcomed(*Come(0, {.number = 1, .id = 0}));
  EXPECT_EQ(begun.number, 1U);
  EXPECT_EQ(Welcomed(*Come(1, {.number = 1, .id = begun.id - 1})), begun);
  EXPECT_EQ(Welcomed(*Come(2, {.number = 1, .id = begun.id + 1})).number, 2U);
}

TEST_F(CoreTerms, AJumpTooFarIsRefusedAndChangesNothing) {
  const auto first = Come(0, {});
  const protocol::Term begun = Welcomed(*first);
  const auto message = Come(1, {.number = 2 + protocol::kMaxTermJump, .id = 1})->First();
  const auto* refused = std::get_if<protocol::Refused>(&message);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->reason.code(), Code::kInvalidArgument);
  EXPECT_FALSE(first->aborted());
  EXPECT_EQ(Welcomed(*Come(1, {})), begun);
}

}  // namespace
}  // namespace weightcast::control
