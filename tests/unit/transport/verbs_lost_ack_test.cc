#include <algorithm>
#include <set>

#include "unit/transport/verbs_world.h"

// Bytes that landed and whose acknowledgement was lost: nobody knows that they did.

namespace weightcast::transport::verbs {
namespace {

constexpr uint64_t kLength = 4096;

class VerbsLostAckTest : public VerbsPairTest {
 protected:
  void SetUp() override { Begin(); }
  /// With hosts of its own each time: a lane that broke often waits long.
  void Begin() {
    Join(Nics(2));
    ASSERT_TRUE(b.side->transport().OpenGrant(Pair::kB, kGrant, {}).ok());
    a.memory->Fill(1);
    ASSERT_EQ(Run(0, Chunk(9, 1)).code, Code::kOk);  // The grant is known.
    ASSERT_TRUE(Until([&] { return b.side->signals.size() == 1; }));
    b.memory->Wipe();
    a.side->Forget();
    b.side->Forget();
  }
  /// Chunk `chunk` of transfer 7, which has `chunks`: one is an immediate, more are records.
  [[nodiscard]] Op Chunk(uint32_t chunk, uint32_t chunks) const {
    const uint32_t at = chunks == 1 ? 0 : chunk;
    return SignalledWriteOf(a, remote, at * kLength, kLength,
                            {.grant = kGrant, .transfer = 7, .chunk = at, .chunks = chunks, .checksum = 0});
  }
  /// What has arrived, each once.
  [[nodiscard]] std::set<std::pair<uint32_t, uint32_t>> Arrived() const {
    std::set<std::pair<uint32_t, uint32_t>> arrived;
    for (const SignalArrived& one : b.side->signals) {
      EXPECT_EQ(one.signal.grant, kGrant);
      arrived.insert({one.signal.transfer, one.signal.chunk});
    }
    return arrived;
  }
};

TEST_F(VerbsLostAckTest, AnOperationThatLandedIsMaybeAndComesAgainOverAnotherLane) {
  world.fabric.DropAck(*a.host);
  const Completion lost = Run(0, Chunk(0, 1));
  EXPECT_EQ(lost.code, Code::kUnavailable);
  EXPECT_EQ(b.side->lanes_down.size(), 1U) << "only once the target's end is gone as well";
  EXPECT_EQ(b.side->signals.size(), 1U) << "it had arrived";
  EXPECT_EQ(Run(1, Chunk(0, 1)).code, Code::kOk);
  ASSERT_TRUE(Until([&] { return b.side->signals.size() == 2; }));
  EXPECT_EQ(Arrived().size(), 1U) << "the same one again";
  EXPECT_TRUE(SameBytes(b.memory->bytes().first(kLength), a.memory->bytes().first(kLength)));
}

TEST_F(VerbsLostAckTest, WhatLandedInPartHasNoSignal) {
  for (const size_t landed : {size_t{0}, size_t{1}, size_t{1000}, size_t{kLength - 1}}) {
    SCOPED_TRACE(landed);
    Begin();
    world.fabric.DropAck(*a.host, 1, landed);
    const Completion lost = Run(0, Chunk(0, 1));
    EXPECT_EQ(lost.code, Code::kUnavailable);
    EXPECT_TRUE(b.side->signals.empty());
    EXPECT_EQ(Run(1, Chunk(0, 1)).code, Code::kOk);
    ASSERT_TRUE(Until([&] { return b.side->signals.size() == 1; }));
    EXPECT_TRUE(SameBytes(b.memory->bytes().first(kLength), a.memory->bytes().first(kLength)));
  }
}

/// The nth message of a transfer of many chunks: each in turn loses its acknowledgement.
TEST_F(VerbsLostAckTest, EveryMessageOfATransferMayBeTheOne) {
  constexpr uint32_t kChunks = 6;
  for (int nth = 1; nth <= 2 * static_cast<int>(kChunks); ++nth) {
    SCOPED_TRACE(nth);
    Begin();
    world.fabric.DropAck(*a.host, nth);
    std::vector<Op> ops;
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) ops.push_back(Chunk(chunk, kChunks));
    ASSERT_EQ(a.side->TryPost(Pair::kA, 0, ops), ops.size());
    ASSERT_TRUE(Until([&] { return a.side->pending() == 0; }));
    std::vector<Op> again;
    for (const Op& op : ops) {
      const Completion& done = a.side->completions[op.cookie];
      if (done.code == Code::kOk) continue;
      EXPECT_EQ(done.code, Code::kUnavailable);
      again.push_back(op);
    }
    EXPECT_FALSE(again.empty());
    ASSERT_EQ(a.side->TryPost(Pair::kA, 1, again), again.size());
    ASSERT_TRUE(Until([&] { return a.side->pending() == 0 && Arrived().size() == kChunks; }));
    EXPECT_LE(b.side->signals.size(), kChunks + again.size());
    EXPECT_TRUE(
        SameBytes(b.memory->bytes().first(kChunks * kLength), a.memory->bytes().first(kChunks * kLength)));
  }
}

/// Until the target's end is destroyed, bytes may land: the operation does not complete before.
TEST_F(VerbsLostAckTest, NothingCompletesBeforeThePeerHasSettled) {
  world.fabric.DropAck(*a.host, 1, 100);
  const uint64_t cookie = Post(0, Chunk(0, 1));
  world.fabric.Advance(World::kLease);
  world.fabric.Hold(*b.host, fake::Direction::kOut);  // It hears and does not answer.
  ASSERT_TRUE(Until([&] { return a.side->lanes_down.size() == 1 && b.side->lanes_down.size() == 1; }));
  for (int i = 0; i < 100; ++i) {
    world.fabric.Advance(World::kTurn);
    a.side->Pump();
    b.side->Pump();
  }
  EXPECT_FALSE(a.side->Completed(cookie));
  world.fabric.Release(*b.host);
  ASSERT_TRUE(Until([&] { return a.side->Completed(cookie); }));
}

TEST_F(VerbsLostAckTest, AControlMessageTwiceIsOnce) {
  for (int nth = 1; nth <= 3; ++nth) {
    SCOPED_TRACE(nth);
    Begin();
    const GrantName grant{.slot = 2, .id = 100};
    world.fabric.DropAck(*b.host, nth);  // Of the grant, its end, or what comes next.
    ASSERT_TRUE(b.side->transport().OpenGrant(Pair::kB, grant, {}).ok());
    b.side->transport().Revoke(Pair::kB, grant);
    ASSERT_TRUE(Until([&] { return b.side->revoked.size() == 1; }));
    ASSERT_TRUE(b.side->transport().OpenGrant(Pair::kB, {.slot = 2, .id = 101}, {}).ok());
    world.fabric.Advance(World::kLease);  // What was lost is noticed.
    Op op = WriteOf(a, remote, 0, kLength);
    op.grant = {.slot = 2, .id = 101};
    EXPECT_EQ(Run(1, op).code, Code::kOk);
    op.grant = grant;
    EXPECT_EQ(Run(1, op).code, Code::kFenced);
    EXPECT_FALSE(a.side->down.contains(Pair::kA) || b.side->down.contains(Pair::kB));
  }
}

}  // namespace
}  // namespace weightcast::transport::verbs
