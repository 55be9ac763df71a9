#include "worker/peer_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>

#include "unit/worker/planned.h"
#include "unit/worker/updates.h"
#include "weights.h"
#include "worker/inference_machine.h"
#include "worker/plan_receiver.h"

// Inference ranks that give to each other over real endpoints, without a controller.

namespace weightcast::worker {
namespace {

using test::Weights;
using testing::HasSubstr;

const Version kFifth{.run = 1, .number = 5};

/// One rank: both machines and what carries out their actions. The test plays controller and user.
class Node {
 public:
  Node(const std::string& engine, const std::map<std::string, std::string>& settings,
       const std::vector<Shard>& shards, LandingMode mode) {
    WorkerOptions options;
    options.engine = engine;
    options.settings = settings;
    Session::Handlers handlers;
    handlers.on_message = [](const protocol::ControllerMessage&) {};
    handlers.on_ended = [](const Status&) {};
    handlers.on_connected = [](const Identity&) {};
    handlers.on_disconnected = [](const Identity&, const Status&) {};
    auto session = Session::Open(options, protocol::Role::kInference, std::move(handlers));
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    session_ = std::move(*session);
    auto memory = LandingMemory::Register(session_->endpoint(), shards, mode);
    EXPECT_TRUE(memory.ok()) << memory.status().ToString();
    memory_ = *memory;
    receiver_ = std::make_unique<PlanReceiver>(*session_, background_, state_,
                                               [this](const InferenceEvent& event) { Dispatch(event); });
    peer_source_ = std::make_unique<PeerSource>(
        *session_, background_,
        PeerSource::Callbacks{.send = [this](protocol::WorkerMessage message) { Said(std::move(message)); },
                              .held = [this] { return VersionToLend(state_); },
                              .on_lent =
                                  [this](bool lent) {
                                    SetLent(lent);
                                    lent ? Dispatch(MemoryLent{}) : Dispatch(MemoryFree{});
                                  }});
    Run([&] {
      const protocol::Welcome welcome{.term = kTerm, .run = {.number = 1}, .lease_seconds = 5};
      peer_source_->Dispatch(welcome);
      Dispatch(welcome);
      Dispatch(RegisterCalled{.landing = mode == LandingMode::kShadow ? protocol::Landing::kShadow
                                                                      : protocol::Landing::kInPlace});
    });
  }
  ~Node() {
    std::unique_ptr<Sender> sender;
    Run([&] { sender = peer_source_->End(); });
    sender.reset();
    session_->Leave();
    background_.Join();
    peer_source_.reset();
    receiver_->Drop();
    memory_.reset();
    session_->CloseEndpoint();
  }

  /// In the loop.
  void Run(const std::function<void()>& task) {
    std::promise<void> done;
    session_->loop().Post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  void Holds(Version version) {
    Run([&] { state_.landed = state_.served = version; });
  }
  [[nodiscard]] protocol::Member member() const {
    return {.name = session_->name(),
            .incarnation = session_->endpoint().self().incarnation,
            .addresses = session_->endpoint().Addresses()};
  }
  /// With the key that the controller gives to a source.
  [[nodiscard]] protocol::Member MemberFor(const Node& source) const {
    protocol::Member told = member();
    told.key = session_->KeyOf(source.session_->endpoint().self());
    return told;
  }
  void PlanToGive(const Planned& planned, uint32_t epoch, const Node& to) {
    const protocol::Plan plan{.epoch = epoch,
                              .table = planned.For(plan::RankTable::Role::kTrainer, 0, epoch),
                              .table_file = {},
                              .peers = {to.MemberFor(*this)},
                              .gives = true};
    protocol::PeerLanding landing{.destination = 0, .map = to.memory_->Map()};
    landing.map.epoch = epoch;
    Run([&] {
      peer_source_->OnPlan(plan, memory_);
      peer_source_->OnLanding(landing);
    });
  }
  void PlanToReceive(const Planned& planned, uint32_t epoch, const Node& from) {
    const protocol::Plan plan{.epoch = epoch,
                              .table = planned.For(plan::RankTable::Role::kInference, 0, epoch),
                              .table_file = {},
                              .peers = {from.member()}};
    // The other has connected: this one's side of it is found, or waited for.
    auto connection = session_->endpoint().Connect(
        plan.peers[0].addresses, session_->IdentityOf(plan.peers[0]), Clock::now() + FromSeconds(10));
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    Run([&] { receiver_->OnPlan(plan, memory_); });
    ASSERT_TRUE(Wait<protocol::Prepared>());
    Run([&] { Dispatch(BeginCalled{}); });
  }
  void Dispatch(const InferenceEvent& event) {
    events_.push_back(event);
    if (std::exchange(feeding_, true)) return;
    while (!events_.empty()) {
      const InferenceEvent next = events_.front();
      events_.pop_front();
      for (const auto& action : Advance(state_, next))
        std::visit([this](const auto& a) { Execute(a); }, action);
    }
    feeding_ = false;
  }
  PeerSource& peer_source() { return *peer_source_; }
  InferenceState& state() { return state_; }
  [[nodiscard]] const std::shared_ptr<LandingMemory>& memory() const { return memory_; }
  [[nodiscard]] bool lent() const { return lent_; }

  /// Waits until a message of this type was sent since the last time.
  template <typename T>
  std::optional<T> Wait() {
    std::unique_lock lock(mutex_);
    std::optional<T> found;
    changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      while (!found && !said_.empty()) {
        if (const auto* message = std::get_if<T>(&said_.front())) found = *message;
        said_.pop_front();
      }
      return found.has_value();
    });
    return found;
  }
  [[nodiscard]] bool WaitUntilFree() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !lent_; });
  }
  std::function<void()> on_open;  ///< Instead of opening grants.

 private:
  void SetLent(bool lent) {
    const std::lock_guard lock(mutex_);
    lent_ = lent;
    changed_.notify_all();
  }
  void Said(protocol::WorkerMessage message) {
    const std::lock_guard lock(mutex_);
    said_.push_back(std::move(message));
    changed_.notify_all();
  }
  void Execute(const SendMessage& send) { Said(send.message); }
  void Execute(const SendRegistration&) {}
  void Execute(const ReclaimMemory&) {
    peer_source_->Dispatch(MemoryReclaimed{.reason = {Code::kCancelled, "wanted"}});
  }
  void Execute(const OpenGrants& open) { on_open ? on_open() : receiver_->Open(open); }
  void Execute(const RevokeGrants& revoke) { receiver_->Revoke(revoke); }
  void Execute(const VerifyChecksums&) {}
  void Execute(const RunSwitch&) {}
  void Execute(const AnswerCall&) {}

  std::unique_ptr<Session> session_;
  Background background_{"wc-prepare"};
  std::shared_ptr<LandingMemory> memory_;
  std::unique_ptr<PeerSource> peer_source_;
  std::unique_ptr<PlanReceiver> receiver_;
  InferenceState state_;
  std::deque<InferenceEvent> events_;
  bool feeding_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<protocol::WorkerMessage> said_;
  std::atomic<bool> lent_{false};
};

class PeerSourceTest : public testing::Test {
 protected:
  void SetUp() override { ::setenv("WEIGHTCAST_TOKEN", "token-of-these-tests-alone", 1); }
  void TearDown() override { ::unsetenv("WEIGHTCAST_TOKEN"); }
  [[nodiscard]] std::map<std::string, std::string> Settings() const {
    return {{"bind", "127.0.0.1"}, {"transport", transport_}};
  }
  /// Both sides of the plan; the receiving one has granted.
  static std::optional<StartOrder> Grant(Node& from, Node& to, const Planned& planned, uint32_t epoch) {
    from.PlanToGive(planned, epoch, to);
    const auto prepared = from.Wait<protocol::Prepared>();
    if (!prepared || prepared->epoch != epoch) return std::nullopt;
    to.PlanToReceive(planned, epoch, from);
    const protocol::UpdateId update = PeerUpdate(epoch, epoch);
    to.Run([&] { to.Dispatch(protocol::GrantRequest{update, kFifth}); });
    const auto granted = to.Wait<protocol::Granted>();
    if (!granted || granted->grants.size() != 1) return std::nullopt;
    const protocol::SourceGrant& grant = granted->grants[0];
    return StartOrder{update, kFifth, 0, grant.slot, grant.id};
  }
  std::string transport_ = "shm";
};

TEST_F(PeerSourceTest, WhatWasReceivedIsGivenOn) {
  for (const char* transport : {"tcp", "shm"}) {
    SCOPED_TRACE(transport);
    transport_ = transport;
    const auto model = test::SmallModel(DType::kBF16);
    Weights first(model, test::Cut::kWhole, 0, 1), second(model, test::Cut::kWhole, 0, 1),
        third(model, test::Cut::kWhole, 0, 1, /*shared=*/false);
    first.Fill(5);
    Node a("a", Settings(), first.shards(), LandingMode::kInPlace);
    Node b("b", Settings(), second.shards(), LandingMode::kShadow);
    Node c("c", Settings(), third.shards(), LandingMode::kInPlace);
    a.Holds(kFifth);
    const Planned planned({first.shards()}, {second.shards()});
    uint32_t epoch = 0;
    // The last one goes over the connection that the one before has made.
    for (auto [from, to] : {std::pair(&a, &b), std::pair(&b, &c), std::pair(&c, &b)}) {
      const auto start = Grant(*from, *to, planned, ++epoch);
      ASSERT_TRUE(start);
      from->Run([&] { from->peer_source().OnStart(*start); });
      ASSERT_TRUE(to->Wait<protocol::Ready>());
      from->Run([&] { from->peer_source().Dispatch(protocol::Release{start->update, kFifth}); });
      ASSERT_TRUE(from->WaitUntilFree());
    }
    EXPECT_EQ(third.Wrong(5), 0);
    EXPECT_NE(second.Wrong(5), 0) << "what was given is the spare buffer";
    EXPECT_TRUE(b.memory()->CopyToLive().ok());
    EXPECT_EQ(second.Wrong(5), 0);
  }
}

TEST_F(PeerSourceTest, StopInTheMiddleIsFencedAndSaysNothing) {
  const std::vector<TensorInfo> model = {{"w", DType::kU64, {8 << 20}}};
  Weights first(model, test::Cut::kWhole, 0, 1), second(model, test::Cut::kWhole, 0, 1);
  Node a("a", Settings(), first.shards(), LandingMode::kInPlace);
  Node b("b", Settings(), second.shards(), LandingMode::kInPlace);
  a.Holds(kFifth);
  const auto start = Grant(a, b, Planned({first.shards()}, {second.shards()}), 1);
  ASSERT_TRUE(start);
  a.Run([&] {
    a.peer_source().OnStart(*start);
    EXPECT_TRUE(a.lent());
    a.peer_source().Dispatch(protocol::Stop{start->update, 0});
    EXPECT_TRUE(a.lent()) << "free before the fence";
  });
  EXPECT_TRUE(a.WaitUntilFree());
  b.Run([&] { b.Dispatch(protocol::Abort{start->update, {Code::kPeerDead, "x"}}); });
  EXPECT_TRUE(b.Wait<protocol::Aborted>());
  a.Run([&] {
    a.peer_source().OnStart({PeerUpdate(1, 1), {.run = 1, .number = 9}, 0, start->slot, start->grant});
  });
  const auto failed = a.Wait<protocol::Failed>();
  ASSERT_TRUE(failed);
  EXPECT_THAT(failed->reason.message(), HasSubstr("cannot send version 9"))
      << "the stopped one said something";
  EXPECT_EQ(failed->destination, 0);
}

TEST_F(PeerSourceTest, MemoryThatIsReadIsGrantedOnlyAfterTheFence) {
  const std::vector<TensorInfo> model = {{"w", DType::kU64, {8 << 20}}};
  Weights first(model, test::Cut::kWhole, 0, 1), second(model, test::Cut::kWhole, 0, 1);
  Node a("a", Settings(), first.shards(), LandingMode::kShadow);
  Node b("b", Settings(), second.shards(), LandingMode::kInPlace);
  a.Holds(kFifth);
  const auto start = Grant(a, b, Planned({first.shards()}, {second.shards()}), 1);
  ASSERT_TRUE(start);
  Flag opened;
  std::atomic<bool> read_at_opening = true;
  a.on_open = [&] {
    read_at_opening = a.lent();
    opened.Set();
  };
  a.Run([&] {
    a.Dispatch(PlanArrived{2});
    a.Dispatch(PlanReady{2});
    a.peer_source().OnStart(*start);
    a.Dispatch(protocol::GrantRequest{PeerUpdate(2, 2), {.run = 1, .number = 6}});
    EXPECT_EQ(a.state().step, Step::kRequested);
    EXPECT_EQ(VersionToLend(a.state()), Version{});
  });
  ASSERT_TRUE(opened.Wait());
  EXPECT_FALSE(read_at_opening);
  const auto failed = a.Wait<protocol::Failed>();
  ASSERT_TRUE(failed) << "the destination waits for what will not come";
  EXPECT_EQ(failed->update, start->update);
  b.Run([&] { b.Dispatch(protocol::Abort{start->update, {Code::kPeerDead, "x"}}); });
  EXPECT_TRUE(b.Wait<protocol::Aborted>());
}

TEST_F(PeerSourceTest, UnreachableDestinationIsNamed) {
  const auto model = test::SmallModel(DType::kU64);
  Weights first(model, test::Cut::kWhole, 0, 1), second(model, test::Cut::kWhole, 0, 1);
  const Planned planned({first.shards()}, {second.shards()});
  Node a("a", Settings(), first.shards(), LandingMode::kInPlace);
  auto b = std::make_unique<Node>("b", Settings(), second.shards(), LandingMode::kInPlace);
  protocol::Plan plan{.epoch = 3,
                      .table = planned.For(plan::RankTable::Role::kTrainer, 0, 3),
                      .table_file = {},
                      .peers = {b->member()},
                      .gives = true};
  protocol::PeerLanding landing{.destination = 0, .map = b->memory()->Map()};
  landing.map.epoch = 3;
  b.reset();
  a.Run([&] {
    a.peer_source().OnPlan(plan, a.memory());
    a.peer_source().OnLanding(landing);
  });
  const auto failed = a.Wait<protocol::Failed>();
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->destination, 0);
  EXPECT_EQ(failed->update, (protocol::UpdateId{.term = kTerm, .epoch = 3, .sequence = 0, .attempt = 0}));
  EXPECT_THAT(failed->reason.message(), HasSubstr("engine b rank 0"));
}

}  // namespace
}  // namespace weightcast::worker
