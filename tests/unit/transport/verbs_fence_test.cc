#include "unit/transport/verbs_world.h"

// Grants and regions that are taken back from a peer that does not answer.

namespace weightcast::transport::verbs {
namespace {

/// a writes to b, which has a region under grants, and a's host can be held: stopped in the middle.
class VerbsFenceTest : public VerbsPairTest {
 protected:
  void SetUp() override {
    Join(Nics(2));
    target.Wipe();
    granted = b.side->Register(target, Access::kGranted);
    to_granted = a.side->Import(Pair::kA, granted);
    ASSERT_TRUE(b.side->transport().OpenGrant(Pair::kB, kGrant, {}).ok());
    a.memory->Fill(1);
    const Completion first = Run(0, Granted(0));
    ASSERT_EQ(first.code, Code::kOk);
    target.Wipe();
    a.side->Forget();
  }
  [[nodiscard]] Op Granted(uint64_t at) const {
    return SignalledWriteOf(a, to_granted, at, 4096,
                            {.grant = kGrant, .transfer = 5, .chunk = 0, .chunks = 1, .checksum = 0});
  }
  /// One on each lane, none of which has landed.
  void PostAndHold() {
    world.fabric.Hold(*a.host);
    for (uint32_t lane = 0; lane < 4; ++lane) ASSERT_NE(Post(lane, Granted(lane * 4096)), 0U);
  }
  /// From here on a's messages go on their way again.
  void ExpectNothingLandsAndLanesComeBack() {
    ASSERT_TRUE(target.Wiped());
    b.side->signals.clear();
    world.fabric.Release(*a.host);
    ASSERT_TRUE(Until([&] { return a.side->pending() == 0; }));
    ASSERT_TRUE(Until([&] { return a.side->lanes_up.size() >= 4 && b.side->lanes_up.size() >= 4; }));
    EXPECT_TRUE(target.Wiped()) << "a write landed after the fence";
    EXPECT_TRUE(b.side->signals.empty());
    for (const auto& [cookie, done] : a.side->completions) EXPECT_NE(done.code, Code::kOk);
    EXPECT_FALSE(a.side->down.contains(Pair::kA));
    for (uint32_t lane = 0; lane < 4; ++lane) ExpectWorks(lane);
  }

  TestMemory target{64 << 10, false};
  Described granted;
  RemoteRegion to_granted{};
};

TEST_F(VerbsFenceTest, RevokeOfAHeldPeerComesByForceAfterAnEighthOfTheLease) {
  PostAndHold();
  const TimePoint began = Clock::now();
  b.side->transport().Revoke(Pair::kB, kGrant);
  ASSERT_TRUE(world.Until({b.side.get()}, [&] { return !b.side->revoked.empty(); }));
  EXPECT_GE(Clock::now() - began, World::kLease / 8) << "by force, and not before";
  EXPECT_LE(Clock::now() - began, World::kLease);
  EXPECT_EQ(b.side->lanes_down.size(), 4U);
  ExpectNothingLandsAndLanesComeBack();
}

TEST_F(VerbsFenceTest, DeregisterOfAHeldPeersTargetComesLikewise) {
  const fake::Counters before = world.fabric.CountersOf(*b.host, 0);
  PostAndHold();
  b.side->transport().Deregister(granted.name.id);
  ASSERT_TRUE(world.Until({b.side.get()}, [&] { return b.side->deregistered.contains(granted.name.id); }));
  EXPECT_EQ(world.fabric.CountersOf(*b.host, 0).mrs, before.mrs - 1) << "its key is gone";
  ExpectNothingLandsAndLanesComeBack();
}

TEST_F(VerbsFenceTest, SeveralAtOnceTakeOneFence) {
  PostAndHold();
  const GrantName other{.slot = 2, .id = 12};
  ASSERT_TRUE(b.side->transport().OpenGrant(Pair::kB, other, {}).ok());
  b.side->transport().Revoke(Pair::kB, kGrant);
  b.side->transport().Revoke(Pair::kB, other);
  b.side->transport().Deregister(granted.name.id);
  ASSERT_TRUE(world.Until({b.side.get()}, [&] {
    return b.side->revoked.size() == 2 && b.side->deregistered.contains(granted.name.id);
  }));
  EXPECT_EQ(b.side->lanes_down.size(), 4U);
  ExpectNothingLandsAndLanesComeBack();
}

TEST_F(VerbsFenceTest, APeerThatAnswersLosesNoQueuePair) {
  for (uint32_t lane = 0; lane < 4; ++lane) ASSERT_NE(Post(lane, Granted(lane * 4096)), 0U);
  b.side->transport().Revoke(Pair::kB, kGrant);
  ASSERT_TRUE(Until([&] { return !b.side->revoked.empty() && a.side->pending() == 0; }));
  EXPECT_TRUE(a.side->lanes_down.empty() && b.side->lanes_down.empty());
  EXPECT_EQ(Run(1, Granted(0)).code, Code::kFenced);
}

/// What lands once is one thing; that it can never land later is another: memory is looked at again and
/// again.
TEST_F(VerbsFenceTest, NothingLandsAfterRevokedWhateverTheMoment) {
  world.fabric.SetDelay(10us, 100us);
  world.fabric.Shuffle(true);
  for (uint64_t id = 100; id < 300; ++id) {
    const GrantName grant{.slot = 3, .id = id};
    ASSERT_TRUE(b.side->transport().OpenGrant(Pair::kB, grant, {}).ok());
    ASSERT_TRUE(Until([&] { return true; }));
    for (uint32_t i = 0; i < 12; ++i) {
      Op op = Granted(i * 4096);
      op.grant = op.signal.grant = grant;
      Post(i % 4, op);
    }
    world.fabric.Advance(std::chrono::microseconds(id % 150));
    b.side->transport().Revoke(Pair::kB, grant);
    ASSERT_TRUE(Until([&] { return std::ranges::find(b.side->revoked, grant) != b.side->revoked.end(); }));
    target.Wipe();
    ASSERT_TRUE(Until([&] { return a.side->pending() == 0; }));
    world.fabric.Advance(10ms);
    ASSERT_TRUE(target.Wiped());
  }
  EXPECT_TRUE(a.side->lanes_down.empty());
}

TEST_F(VerbsFenceTest, AStoppedPeersLinkThatIsClosedIsOverAtOnce) {
  PostAndHold();
  ASSERT_TRUE(world.Close(b, Pair::kB));
  target.Wipe();
  world.fabric.Release(*a.host);
  ASSERT_TRUE(world.Until({a.side.get(), b.side.get()}, [&] { return a.side->down.contains(Pair::kA); }));
  EXPECT_EQ(a.side->pending(), 0U);
  EXPECT_TRUE(target.Wiped());
}

}  // namespace
}  // namespace weightcast::transport::verbs
