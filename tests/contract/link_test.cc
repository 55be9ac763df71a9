// Links: how they open, end and end badly.
#include <atomic>
#include <thread>

#include "contract/suite.h"

namespace weightcast::transport {
namespace {

class LinkTest : public PairTest {
 protected:
  static constexpr size_t kSize = 1U << 20;
  void MapBoth() {
    source.Fill(1);
    Map(source, target, Access::kReadWrite);
  }
  TestMemory source = NewMemory(kSize);
  TestMemory target = NewMemory(kSize);
};

TEST_P(LinkTest, TheWriterClosesUnderLoad) {
  MapBoth();
  for (int i = 0; i < 20; ++i) a.Post(Pair::kA, 0, WriteOp(0, 0, kSize));
  const size_t posted = a.pending() + a.completions.size();
  a.transport().CloseLink(Pair::kA);
  ASSERT_TRUE(pair.Until([&] { return a.closed.contains(Pair::kA) && b.down.contains(Pair::kB); }));
  EXPECT_EQ(a.pending(), 0U);
  EXPECT_EQ(a.completions.size(), posted);
  for (const auto& [cookie, done] : a.completions)
    EXPECT_TRUE(done.code == Code::kOk || done.code == Code::kCancelled);
  EXPECT_EQ(a.transport().Post(Pair::kA, 0, std::array{WriteOp(0, 0, 8)}), 0U);
  b.transport().CloseLink(Pair::kB);
  ASSERT_TRUE(pair.Until([&] { return b.closed.contains(Pair::kB); }));
}

TEST_P(LinkTest, TheTargetClosesUnderLoadAndNothingLandsAfterwards) {
  MapBoth();
  for (int i = 0; i < 20; ++i) a.Post(Pair::kA, 0, WriteOp(0, 0, kSize));
  b.transport().CloseLink(Pair::kB);
  ASSERT_TRUE(pair.Until([&] { return b.closed.contains(Pair::kB); }));
  target.Wipe();
  ASSERT_TRUE(pair.Until([&] { return a.down.contains(Pair::kA) && a.pending() == 0; }));
  EXPECT_TRUE(target.Wiped());
  EXPECT_FALSE(a.lanes_down.empty());
  for (const auto& [cookie, done] : a.completions) {
    EXPECT_TRUE(done.code == Code::kOk || done.code == Code::kUnavailable || done.code == Code::kPeerDead);
  }
  EXPECT_EQ(a.transport().Post(Pair::kA, 0, std::array{WriteOp(0, 0, 8)}), 0U);
}

TEST_P(LinkTest, AnIdServesAgainAfterLinkClosed) {
  for (int round = 0; round < 5; ++round) {
    MapBoth();
    EXPECT_EQ(Run(WriteOp(0, 0, kSize)).code, Code::kOk);
    EXPECT_TRUE(SameBytes(source.Read(), target.Read()));
    a.transport().Deregister(local.name.id);
    b.transport().Deregister(target_region.name.id);
    a.transport().CloseLink(Pair::kA);
    b.transport().CloseLink(Pair::kB);
    ASSERT_TRUE(pair.Until([&] { return a.closed.contains(Pair::kA) && b.closed.contains(Pair::kB); }));
    ASSERT_TRUE(pair.Until([&] {
      return a.deregistered.contains(local.name.id) && b.deregistered.contains(target_region.name.id);
    }));
    ASSERT_TRUE(pair.Connect());
  }
}

TEST_P(LinkTest, RevokeOnALinkThatIsDownStillEnds) {
  const GrantName grant{.slot = 4, .id = 44};
  ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, grant, {}).ok());
  a.transport().CloseLink(Pair::kA);
  ASSERT_TRUE(pair.Until([&] { return b.down.contains(Pair::kB); }));
  b.transport().Revoke(Pair::kB, grant);
  ASSERT_TRUE(pair.Until([&] { return !b.revoked.empty(); }));
  EXPECT_EQ(b.revoked.back(), grant);
}

TEST_P(LinkTest, BadIdsAreRefused) {
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  EXPECT_FALSE(a.transport().OpenLink(Pair::kA, Role::kInitiator, b.self(), "", deadline).ok());
  EXPECT_FALSE(a.transport().OpenLink(LinkId{}, Role::kInitiator, b.self(), "", deadline).ok());
  EXPECT_FALSE(a.transport().Establish(LinkId{99}, "").ok());
  EXPECT_FALSE(a.transport().Import(LinkId{99}, {b.self(), 1, 1}, 8, "").ok());
  EXPECT_FALSE(a.transport().OpenGrant(LinkId{99}, {.slot = 1, .id = 1}, {}).ok());
  EXPECT_EQ(a.transport().Post(LinkId{99}, 0, std::array{Op{.grant{}, .signal{}}}), 0U);
  EXPECT_EQ(a.transport().Post(Pair::kA, 99, std::array{Op{.grant{}, .signal{}}}), 0U);
}

/// A blob cut short anywhere, or with any byte changed, gives an error or a link that does not come up
/// by itself: never a crash, never a hang.
TEST_P(LinkTest, DamagedBlobsAreHarmless) {
  const auto soon = [] { return Clock::now() + std::chrono::milliseconds(50); };
  const LinkId id{50};
  const auto offer = a.transport().OpenLink(id, Role::kInitiator, b.self(), "", soon());
  ASSERT_TRUE(offer.ok());
  for (size_t cut = 0; cut < offer->size(); ++cut) {
    const LinkId other{1000 + static_cast<uint32_t>(cut)};
    const auto answer =
        b.transport().OpenLink(other, Role::kResponder, a.self(), offer->substr(0, cut), soon());
    EXPECT_FALSE(answer.ok()) << cut;
  }
  EXPECT_FALSE(b.transport().OpenLink(LinkId{60}, Role::kResponder, a.self(), *offer + "x", soon()).ok());
  auto answer = b.transport().OpenLink(LinkId{61}, Role::kResponder, a.self(), *offer, soon());
  ASSERT_TRUE(answer.ok());
  for (size_t cut = 0; cut < answer->size(); ++cut) {
    EXPECT_FALSE(a.transport().Establish(id, answer->substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(a.transport().Establish(id, *answer + "x").ok());
  PumpFor({&a, &b}, std::chrono::milliseconds(100));
  EXPECT_TRUE(a.down.contains(id));
  EXPECT_TRUE(b.down.contains(LinkId{61}));
}

TEST_P(LinkTest, AnUnansweredLinkIsDownAtItsDeadline) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(50);
  const auto offer = a.transport().OpenLink(LinkId{20}, Role::kInitiator, b.self(), "", deadline);
  ASSERT_TRUE(offer.ok());
  ASSERT_TRUE(b.transport().OpenLink(LinkId{21}, Role::kResponder, a.self(), *offer, deadline).ok());
  ASSERT_TRUE(pair.Until([&] { return a.down.contains(LinkId{20}) && b.down.contains(LinkId{21}); }));
  EXPECT_GE(Clock::now(), deadline);
  EXPECT_EQ(a.down[LinkId{20}].code(), Code::kTimedOut);
  EXPECT_EQ(b.down[LinkId{21}].code(), Code::kTimedOut);
  a.transport().CloseLink(LinkId{20});
  ASSERT_TRUE(pair.Until([&] { return a.closed.contains(LinkId{20}); }));
}

TEST_P(LinkTest, APeerThatIsGoneBeforeTheLinkIsReadyIsNoHang) {
  const auto deadline = Clock::now() + std::chrono::seconds(2);
  auto gone = std::make_unique<Side>(factory());
  const auto offer = a.transport().OpenLink(LinkId{30}, Role::kInitiator, gone->self(), "", deadline);
  ASSERT_TRUE(offer.ok());
  const auto answer = gone->transport().OpenLink(LinkId{31}, Role::kResponder, a.self(), *offer, deadline);
  ASSERT_TRUE(answer.ok());
  gone.reset();
  // An error at once is as good as LinkDown.
  if (!a.transport().Establish(LinkId{30}, *answer).ok()) return;
  ASSERT_TRUE(pair.Until([&] { return a.down.contains(LinkId{30}); }));
  EXPECT_LT(Clock::now(), deadline + std::chrono::seconds(5));
}

TEST_P(LinkTest, ManyPeersWriteToOne) {
  constexpr uint32_t kPeers = 4;
  const TestMemory whole = NewMemory(kPeers * kSize);
  const Described region = b.Register(whole, Access::kReadWrite);
  struct Peer {
    std::unique_ptr<Side> side;
    std::unique_ptr<TestMemory> memory;
    LinkId link;
  };
  std::vector<Peer> peers;
  for (uint32_t i = 0; i < kPeers; ++i) {
    Peer peer{std::make_unique<Side>(factory()), std::make_unique<TestMemory>(NewMemory(kSize)),
              LinkId{100 + i}};
    const auto deadline = Clock::now() + kPatience;
    auto offer = peer.side->transport().OpenLink(peer.link, Role::kInitiator, b.self(), "", deadline);
    ASSERT_TRUE(offer.ok());
    auto answer = b.transport().OpenLink(peer.link, Role::kResponder, peer.side->self(), *offer, deadline);
    ASSERT_TRUE(answer.ok());
    ASSERT_TRUE(peer.side->transport().Establish(peer.link, *answer).ok());
    peer.memory->Fill(i);
    peer.side->partner = &b;
    peers.push_back(std::move(peer));
  }
  for (Peer& peer : peers) {
    ASSERT_TRUE(PumpUntil({peer.side.get(), &b}, [&] {
      return peer.side->ready.contains(peer.link) && b.ready.contains(peer.link);
    }));
  }
  for (uint32_t i = 0; i < kPeers; ++i) {
    Side& side = *peers[i].side;
    const Described mine = side.Register(*peers[i].memory, Access::kLocal);
    const RemoteRegion to = side.Import(peers[i].link, region);
    for (uint64_t at = 0; at < kSize; at += kSize / 4) {
      side.Post(peers[i].link, 0,
                {.local = mine.name.id,
                 .local_offset = at,
                 .remote = to,
                 .remote_offset = i * kSize + at,
                 .length = kSize / 4,
                 .grant{},
                 .signal{}});
    }
  }
  for (uint32_t i = 0; i < kPeers; ++i) {
    Side& side = *peers[i].side;
    ASSERT_TRUE(PumpUntil({&side, &b}, [&] { return side.pending() == 0; }));
    EXPECT_TRUE(SameBytes(whole.Read(i * kSize, kSize), peers[i].memory->Read()));
  }
}

TEST_P(LinkTest, DestroyedInTheMiddleOfEverything) {
  MapBoth();
  auto other = std::make_unique<Pair>(factory());
  ASSERT_TRUE(other->Connect());
  const Described from = other->a.Register(source, Access::kLocal);
  const RemoteRegion to = other->a.Import(Pair::kA, other->b.Register(target, Access::kReadWrite));
  for (int i = 0; i < 8; ++i) {
    other->a.Post(Pair::kA, 0, {.local = from.name.id, .remote = to, .length = kSize, .grant{}, .signal{}});
  }
  const auto before = Clock::now();
  other.reset();
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(5));
  EXPECT_EQ(Run(WriteOp(0, 0, kSize)).code, Code::kOk);
}

/// Registering from other threads while one drives progress.
TEST_P(LinkTest, RegistersAndImportsFromManyThreads) {
  MapBoth();
  std::atomic<bool> stop = false;
  std::atomic<uint32_t> failures = 0;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 200 && !stop; ++i) {
        const RegionName name{.owner = b.self(), .id = 1000 + t * 1000 + i, .generation = i + 1};
        auto key = b.transport().Register(name, target.memory(), Access::kReadWrite);
        if (!key.ok() || !a.transport().Import(Pair::kA, name, kSize, *key).ok()) failures.fetch_add(1);
        b.transport().Deregister(name.id);
      }
    });
  }
  while (b.deregistered.size() < 600) {
    ASSERT_EQ(Run(WriteOp(0, 0, 64 << 10)).code, Code::kOk);
    if (failures.load() > 0) break;
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0U);
}

WC_CONTRACT(LinkTest);

}  // namespace
}  // namespace weightcast::transport
