#include "unit/transport/verbs_hostile_peer.h"

// A peer that breaks the rules costs itself a queue pair or the link, and nobody else anything.

namespace weightcast::transport::verbs {
namespace {

constexpr LinkId kLink{5};

class VerbsHostileTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(peer.BecomeReady(kLink)); }
  bool LaneGoes(uint32_t lane) {
    return peer.Until([&] {
      return std::ranges::any_of(side.lanes_down, [&](const LaneDown& down) { return down.lane == lane; });
    });
  }
  bool LinkGoes() {
    return peer.Until([&] { return side.down.contains(kLink); });
  }

  World world;
  Node victim = world.Start();
  Side& side = *victim.side;
  HostilePeer peer{world, side};
};

TEST_F(VerbsHostileTest, AnUnknownLeaseIsStale) {
  peer.SendImmediate(1, Encode(Immediate{.lease = 9, .transfer = 3}));
  peer.Send(2, Record{.lease = 10, .transfer = 1, .chunk = 0, .chunks = 2, .checksum = 0});
  // Behind them, in order.
  for (const uint32_t queue : {1U, 2U}) {
    peer.SendImmediate(queue, Encode(Immediate{.lease = 0, .transfer = 4}));
  }
  EXPECT_TRUE(peer.Until([&] { return side.signals.size() == 2; }));
  for (const auto& arrived : side.signals) EXPECT_EQ(arrived.signal.transfer, 4U);
  EXPECT_TRUE(side.lanes_down.empty());
}

TEST_F(VerbsHostileTest, AnImmediateThatStandsForNothingEndsItsLane) {
  peer.SendImmediate(1, 1U << 31);
  EXPECT_TRUE(LaneGoes(0));
  EXPECT_EQ(side.lanes_down[0].reason.code(), Code::kProtocol);
  EXPECT_FALSE(side.down.contains(kLink)) << "the other lane is up";
  peer.SendImmediate(2, Encode(Immediate{.lease = 0, .transfer = 3}));
  EXPECT_TRUE(peer.Until([&] { return side.signals.size() == 1; }));
}

TEST_F(VerbsHostileTest, WhatIsNoMessageEndsItsLane) {
  peer.SendRaw(1, "no message at all");
  EXPECT_TRUE(LaneGoes(0));
  peer.SendRaw(2, "");
  EXPECT_TRUE(LaneGoes(1));
}

TEST_F(VerbsHostileTest, AControlMessageOnALaneEndsIt) {
  peer.Send(1, Numbered{.cookie = peer.cookie, .number = 1, .message = Bye{}});
  EXPECT_TRUE(LaneGoes(0));
  EXPECT_FALSE(side.down.contains(kLink));
}

TEST_F(VerbsHostileTest, AProbeForAnotherQueueEndsIt) {
  peer.Send(1, Probe{.cookie = peer.cookie, .queue = 2, .generation = 1});
  EXPECT_TRUE(LaneGoes(0));
  peer.Send(2, Probe{.cookie = peer.cookie + 1, .queue = 2, .generation = 1});
  EXPECT_TRUE(LaneGoes(1));
}

TEST_F(VerbsHostileTest, AMessageOfTheMostBytesAndOneTooLong) {
  peer.SendRaw(1, std::string(kMaxMessage, 'x'));
  EXPECT_TRUE(LaneGoes(0));
  std::string long_one(kMaxMessage + 1, 'x');
  peer.Write(2, reinterpret_cast<uint64_t>(long_one.data()), 1, 8);  // An unknown key: the queue pair ends.
  EXPECT_TRUE(LaneGoes(1));
}

/// Its only control queue pair, and so the link.
TEST_F(VerbsHostileTest, AWrongCookieEndsTheLink) {
  peer.Send(0, Numbered{.cookie = peer.cookie + 1, .number = peer.next_number, .message = Start{}});
  EXPECT_TRUE(LinkGoes());
}

TEST_F(VerbsHostileTest, AnImmediateOnTheControlQueuePairEndsTheLink) {
  peer.SendImmediate(0, 1);
  EXPECT_TRUE(LinkGoes());
}

TEST_F(VerbsHostileTest, ARecordOnTheControlQueuePairEndsTheLink) {
  peer.Send(0, Record{.lease = 0, .transfer = 1, .chunk = 0, .chunks = 1, .checksum = 0});
  EXPECT_TRUE(LinkGoes());
}

TEST_F(VerbsHostileTest, AGapInTheNumbersIsWaitedForWithinBounds) {
  ++peer.next_number;  // One that never comes.
  for (int i = 0; i < 64; ++i) {
    peer.Say(Fenced{99});
    ASSERT_TRUE(peer.Settle());
  }
  EXPECT_FALSE(side.down.contains(kLink));
  peer.Say(Fenced{99});
  EXPECT_TRUE(LinkGoes());
}

TEST_F(VerbsHostileTest, MessagesOutOfTurnAreIgnoredOrEndTheLink) {
  const ControlMessage harmless[] = {Start{},
                                     Started{},
                                     Fenced{12345},
                                     QueueOver{1, 99},
                                     QueueOver{2, 0},
                                     AskGrant{{.slot = 5, .id = 5}},
                                     GrantClosed{{.slot = 5, .id = 5}},
                                     GrantOpened{{.slot = 5, .id = 5}, 1},
                                     RevokeGrant{{.slot = 5, .id = 5}, 3},
                                     RegionOver{1, 1, 4}};
  for (const ControlMessage& message : harmless) {
    peer.Say(message);
    ASSERT_TRUE(peer.Settle());
  }
  ASSERT_TRUE(peer.Until([&] { return peer.Heard<Fenced>() && peer.Heard<GrantClosed>(); }));
  EXPECT_FALSE(side.down.contains(kLink));
  EXPECT_TRUE(side.lanes_down.empty());
}

TEST_F(VerbsHostileTest, WhatCannotBeEndsTheLink) {
  const ControlMessage fatal[] = {RegionOver{kMaxRegionId, 1, 1},
                                  QueueOver{99, 1},
                                  QueueOffer{1, 2, 3, 4},   // It is up.
                                  QueueOffer{99, 2, 3, 4},  // It is not there.
                                  QueueAnswer{1, 1, 3, 4},  // Nothing was offered.
                                  NewAddress{.rail = 9, .facts = 5},
                                  Bye{}};
  uint32_t link = 100;
  for (const ControlMessage& message : fatal) {
    SCOPED_TRACE(message.index());
    HostilePeer other(world, side);
    const LinkId id{++link};
    ASSERT_TRUE(other.BecomeReady(id));
    other.Say(message);
    EXPECT_TRUE(other.Until([&] { return side.down.contains(id); }));
    EXPECT_FALSE(side.down.contains(kLink)) << "another peer's link suffers";
  }
}

TEST_F(VerbsHostileTest, ALaneThatIsOverCanBeOfferedOnlyAsItsNextLife) {
  peer.SendImmediate(1, 1U << 31);
  ASSERT_TRUE(LaneGoes(0));
  peer.Say(QueueOver{1, 1});
  peer.Say(QueueOffer{1, 3, 4, 5});
  EXPECT_TRUE(LinkGoes());
}

TEST_F(VerbsHostileTest, AnOfferThatLeadsNowhereEndsAgain) {
  peer.SendImmediate(1, 1U << 31);
  ASSERT_TRUE(LaneGoes(0));
  peer.Say(QueueOver{1, 1});
  peer.Say(QueueOffer{1, 2, 0xfffff, 5});
  ASSERT_TRUE(peer.Until([&] { return peer.Heard<QueueAnswer>() || peer.Heard<QueueOver>(); }));
  peer.Say(QueueOver{1, 2});
  ASSERT_TRUE(peer.Settle());
  EXPECT_FALSE(side.down.contains(kLink));
  EXPECT_TRUE(side.lanes_up.empty());
}

/// It opens every lease there is, one after another, and each time another name.
TEST_F(VerbsHostileTest, ManyRevokesAreAnsweredEach) {
  for (uint64_t id = 1; id <= 500; ++id) {
    peer.Say(RevokeGrant{{.slot = 1 + static_cast<uint32_t>(id % 63), .id = id}, id});
    ASSERT_TRUE(peer.Settle());
  }
  EXPECT_TRUE(peer.Until([&] { return peer.Heard<Fenced>() && peer.Heard<Fenced>()->fence == 500; }));
}

}  // namespace
}  // namespace weightcast::transport::verbs
