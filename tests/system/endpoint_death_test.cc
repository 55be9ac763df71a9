#include <gmock/gmock.h>

#include "system/endpoint_peer.h"

namespace weightcast::system_test {
namespace {

using ::testing::HasSubstr;

/// The test's endpoint, with what it is told of ends.
class Watcher {
 public:
  explicit Watcher(const PeerSetup& setup) {
    EndpointOptions options = OptionsOf(setup, "test");
    options.on_disconnect = [this](const Identity& peer, const Status& reason) {
      const std::lock_guard lock(mutex_);
      ends_.emplace_back(peer, reason);
    };
    options.on_connection = [this](Connection connection) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back(std::move(connection));
    };
    endpoint_ = *Endpoint::Create(std::move(options));
  }
  Endpoint* operator->() const { return endpoint_.get(); }
  Result<Connection> Connect(const Peer& peer) const {
    return endpoint_->Connect(peer.addresses(), peer.identity(), Soon());
  }
  std::pair<Identity, Status> End(size_t index = 0) {
    EXPECT_TRUE(Eventually([&] {
      const std::lock_guard lock(mutex_);
      return ends_.size() > index;
    }));
    const std::lock_guard lock(mutex_);
    return ends_.at(index);
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<Identity, Status>> ends_;
  std::vector<Connection> accepted_;
  std::unique_ptr<Endpoint> endpoint_;
};

class EndpointDeath : public ::testing::TestWithParam<PeerSetup> {};
INSTANTIATE_TEST_SUITE_P(Paths, EndpointDeath,
                         ::testing::Values(PeerSetup{.transport = "shm", .shared = true},
                                           PeerSetup{.transport = "shm", .shared = false},
                                           PeerSetup{.transport = "tcp", .shared = false}),
                         NameOf);

TEST_P(EndpointDeath, AKilledPeerIsNoticedAtOnce) {
  constexpr size_t kSize = 8 << 20;
  auto peer = std::make_unique<Peer>(GetParam(), kSize);
  peer->Open();
  Watcher watcher(GetParam());
  auto connection = watcher.Connect(*peer);
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  peer->Do("accepted");
  Area area(kSize, GetParam().shared);
  auto region = watcher->Register(area.bytes, Access::kGranted);
  const auto imported = connection->Import(peer->Region("readwrite"));
  auto grant = connection->OpenGrant({.transfers = 1});
  ASSERT_TRUE(region.ok() && imported.ok() && grant.ok());
  // It writes to us and we write to it, without end.
  peer->Tell(StrCat("flood ", grant->slot, " ", grant->id, " ", Hex(region->Descriptor())));
  ASSERT_TRUE(Eventually([&] { return connection->ProgressOf(*grant).chunks_arrived > 0; }));
  Area source(kSize, GetParam().shared);
  auto local = watcher->Register(source.bytes, Access::kLocal);
  const Piece piece{local->Whole(), imported->Whole()};
  std::vector<Transfer> writes;
  for (int i = 0; i < 20; ++i) writes.push_back(*connection->Write({&piece, 1}, {}));
  peer->Kill();
  for (Transfer& write : writes) {
    const Status status = write.WaitFenced(Soon());
    EXPECT_TRUE(status.ok() || status.code() == Code::kPeerDead) << status.ToString();
    EXPECT_TRUE(write.fenced());
  }
  const auto [who, why] = watcher.End();
  EXPECT_EQ(who, peer->identity());
  EXPECT_EQ(why.code(), Code::kPeerDead) << why.ToString();
  EXPECT_THAT(connection->status().message(), HasSubstr("peer 0 (127.0.0.1:"));
  // Death is proven: the grant is fenced and the region can be closed.
  std::atomic<bool> fenced = false;
  connection->RevokeGrant(*grant, [&] { fenced = true; });
  EXPECT_TRUE(Eventually([&] { return fenced.load(); }));
  EXPECT_TRUE(region->Close(Soon()).ok());
}

/// Whatever was done last before it was killed: every call ends with an error soon, and what is left closes.
TEST_P(EndpointDeath, APeerKilledAtEveryStageHangsNobody) {
  constexpr size_t kSize = 32 << 20;
  constexpr std::array kStages = {"listening",  "connected",     "registered",   "imported",
                                  "small done", "write is half", "read is half", "notices wait"};
  for (size_t last = 0; last < kStages.size(); ++last) {
    SCOPED_TRACE(kStages[last]);
    Peer peer(GetParam(), kSize);
    peer.Open();
    Area area(kSize, GetParam().shared);
    Watcher watcher(GetParam());
    const auto upto = [&](std::string_view stage) {
      return last >= static_cast<size_t>(std::find(kStages.begin(), kStages.end(), stage) - kStages.begin());
    };
    std::optional<Connection> connection;
    std::optional<Region> region;
    RemoteRegion imported;
    std::vector<Transfer> transfers;
    if (upto("connected")) {
      connection.emplace(std::move(watcher.Connect(peer)).value());
      peer.Do("accepted");
    }
    if (upto("registered")) region.emplace(*watcher->Register(area.bytes, Access::kReadWrite));
    if (upto("imported")) imported = *connection->Import(peer.Region("readwrite"));
    const auto piece = [&](uint64_t length) {
      return Piece{*region->Slice(0, length), *imported.Slice(0, length)};
    };
    if (upto("small done")) {
      const Piece small = piece(8);
      ASSERT_TRUE(connection->Write({&small, 1}, {})->Wait().ok());
    }
    if (upto("write is half")) {
      const Piece all = piece(kSize);
      for (int i = 0; i < 8; ++i) transfers.push_back(*connection->Write({&all, 1}, {}));
      ASSERT_TRUE(transfers[0].Wait().ok());
    }
    if (upto("read is half")) {
      const Piece all = piece(kSize);
      for (int i = 0; i < 8; ++i) transfers.push_back(*connection->Read({&all, 1}, {}));
    }
    if (upto("notices wait")) {
      while (connection->Notify(std::string(1000, 'x')).ok()) {
      }
    }
    const TimePoint then = Clock::now();
    peer.Kill();
    if (connection) {
      for (Transfer& transfer : transfers) {
        (void)transfer.Wait();  // Well, or with an error: but it ends.
        EXPECT_TRUE(transfer.WaitFenced(Soon()).ok() || transfer.fenced());
      }
      EXPECT_TRUE(Eventually([&] { return !connection->status().ok(); }));
      EXPECT_EQ(connection->status().code(), Code::kPeerDead) << connection->status().ToString();
      EXPECT_EQ(connection->Notify("late", Soon()).code(), Code::kPeerDead);
      EXPECT_EQ(connection->TakeNotice(Soon()).status().code(), Code::kPeerDead);
    } else {
      EXPECT_FALSE(watcher.Connect(peer).ok());
    }
    if (region) {
      EXPECT_TRUE(region->Close(Soon()).ok());
      if (connection) {
        const Piece small{*region->Slice(0, 8), {}};
        EXPECT_FALSE(connection->Write({&small, 1}, {}).ok());
      }
    }
    EXPECT_LT(Clock::now() - then, kPatience / 2) << "ended, not timed out";
  }
}

TEST_P(EndpointDeath, AStoppedPeerIsDeadAfterItsLeaseAndHarmlessLater) {
  PeerSetup setup = GetParam();
  setup.lease = "0.5";
  constexpr size_t kSize = 4 << 20;
  Peer peer(setup, kSize);
  peer.Open();
  Watcher watcher(setup);
  auto connection = watcher.Connect(peer);
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  peer.Do("accepted");
  Area area(kSize, setup.shared);
  auto region = watcher->Register(area.bytes, Access::kGranted);
  auto grant = connection->OpenGrant({.transfers = 1});
  peer.Region("local");
  peer.Tell(StrCat("flood ", grant->slot, " ", grant->id, " ", Hex(region->Descriptor())));
  ASSERT_TRUE(Eventually([&] { return connection->ProgressOf(*grant).chunks_arrived > 0; }));
  peer.Signal(SIGSTOP);
  const auto [who, why] = watcher.End();
  EXPECT_EQ(who, peer.identity());
  EXPECT_EQ(why.code(), Code::kPeerDead);
  EXPECT_THAT(why.message(), HasSubstr("missed heartbeats for"));
  // It may have been stopped in the middle of a copy into our memory: then the fence waits for it.
  std::atomic<bool> fenced = false;
  uint64_t then = 0;
  connection->RevokeGrant(*grant, [&] {
    then = Hash64(area.bytes);
    fenced = true;
  });
  const bool fenced_while_stopped = Eventually([&] { return fenced.load(); }, FromSeconds(0.2));
  if (fenced_while_stopped) {
    EXPECT_EQ(Hash64(area.bytes), then);
  }
  peer.Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return fenced.load(); }));
  const std::string answer = peer.Answer();
  EXPECT_THAT(answer, HasSubstr("error")) << answer;
  EXPECT_EQ(Hash64(area.bytes), then);
  peer.Do("disconnected");
  EXPECT_THAT(peer.Ask("status"), HasSubstr("error"));
  EXPECT_EQ(Hash64(area.bytes), then);
  // They can meet again, and now it counts as alive.
  auto again = watcher.Connect(peer);
  EXPECT_TRUE(again.ok()) << again.status().ToString();
}

TEST_P(EndpointDeath, ARestartedPeerIsAnother) {
  auto first = std::make_unique<Peer>(GetParam());
  auto second = std::make_unique<Peer>(GetParam());
  first->Open();
  Watcher watcher(GetParam());
  ASSERT_TRUE(watcher.Connect(*first).ok());
  first->Do("accepted");
  first->Kill();
  second->Open();
  EXPECT_NE(first->identity().incarnation, second->identity().incarnation);
  EXPECT_EQ(watcher.End().second.code(), Code::kPeerDead);
  const Status old = watcher->Connect(second->addresses(), first->identity(), Soon()).status();
  EXPECT_THAT(old.message(), HasSubstr("peer 0 has restarted"));
  auto connection = watcher.Connect(*second);
  EXPECT_TRUE(connection.ok()) << connection.status().ToString();
}

TEST(EndpointConnecting, AWrongTokenIsSaidInBothProcesses) {
  Peer peer({.token = "the-token-of-their-job"});
  peer.Open();
  Watcher watcher({.token = "the-token-of-our-own-job"});
  const Status status = watcher.Connect(peer).status();
  EXPECT_EQ(status.code(), Code::kPermission);
  EXPECT_THAT(status.message(), HasSubstr("give both the same WEIGHTCAST_TOKEN"));
  EXPECT_TRUE(Eventually(
      [&] { return peer.Log().find("give both the same WEIGHTCAST_TOKEN") != std::string::npos; }));
}

TEST(EndpointConnecting, AWrongRankIsSaidInBothProcesses) {
  Peer peer({.rank = 1});
  peer.Open();
  Watcher watcher({});
  Identity expected = peer.identity();
  expected.rank = 2;
  const Status status = watcher->Connect(peer.addresses(), expected, Soon()).status();
  EXPECT_THAT(status.message(), HasSubstr("expected peer 2 but peer 1 answers"));
  EXPECT_TRUE(
      Eventually([&] { return peer.Log().find("expected peer 2 but peer 1 answers") != std::string::npos; }));
}

TEST(EndpointConnecting, BothAtOnceMakeOneConnection) {
  for (int round = 0; round < 10; ++round) {
    Peer peer({});
    peer.Open();
    Watcher watcher({});
    peer.Tell(StrCat("connect ", watcher->Addresses()[0], " test 0 ", watcher->self().incarnation));
    auto connection = watcher.Connect(peer);
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    EXPECT_EQ(peer.Answer(), "ok " + connection->transport_name());
    EXPECT_EQ(watcher->Peers().size(), 1U);
    EXPECT_TRUE(connection->Write({}, {})->Wait().ok());
    peer.Do("status");
  }
}

}  // namespace
}  // namespace weightcast::system_test
