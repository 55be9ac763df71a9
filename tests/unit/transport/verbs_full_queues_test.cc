#include "unit/transport/verbs_world.h"

// Devices whose queues are hardly long enough: everything waits for room, nothing is lost or overrun.

namespace weightcast::transport::verbs {
namespace {

class VerbsFullQueuesTest : public VerbsPairTest {
 protected:
  static constexpr int kPeers = 6;
  static constexpr uint32_t kWrites = 200;  ///< To each peer, on each of two lanes.

  static fake::HostConfig Tiny(int max_cqe, int max_srq_wr, int max_qp_wr) {
    fake::HostConfig config = Nics(1);
    config.devices[0].max_cqe = max_cqe;
    config.devices[0].max_srq_wr = max_srq_wr;
    config.devices[0].max_qp_wr = max_qp_wr;
    config.devices[0].keeps_completions = true;
    return config;
  }
  /// a writes with signals to several peers at once, over one device, and they back to it.
  void FanOut(const fake::HostConfig& config) {
    a = world.Start(config);
    a.memory->Fill(1);
    std::vector<Node> peers;
    std::vector<Side*> sides{a.side.get()};
    std::vector<RemoteRegion> regions;
    for (int i = 0; i < kPeers; ++i) {
      peers.push_back(world.Start(config));
      sides.push_back(peers.back().side.get());
    }
    const auto pump = [&](const std::function<bool()>& done) {
      return world.Until({a.side.get()}, [&] {
        for (Side* side : sides) side->Pump();
        return done();
      });
    };
    for (int i = 0; i < kPeers; ++i) {
      Side& peer = *peers[static_cast<size_t>(i)].side;
      const TimePoint deadline = Clock::now() + 20s;
      const LinkId id{static_cast<uint32_t>(i) + 1};
      const auto offer = a.side->transport().OpenLink(id, Role::kInitiator, peer.self(), "", deadline);
      ASSERT_TRUE(offer.ok()) << offer.status().message();
      const auto answer =
          peer.transport().OpenLink(Pair::kB, Role::kResponder, a.side->self(), *offer, deadline);
      ASSERT_TRUE(answer.ok()) << answer.status().message();
      ASSERT_TRUE(a.side->transport().Establish(id, *answer).ok());
      ASSERT_TRUE(pump([&] { return a.side->ready.contains(id) && peer.ready.contains(Pair::kB); }));
      regions.push_back(a.side->Import(id, peers[static_cast<size_t>(i)].region));
    }
    uint32_t posted = 0;
    uint32_t waiting = 0;
    std::vector<std::array<uint32_t, 2>> next(kPeers, {0, 0});
    ASSERT_TRUE(pump([&] {
      for (uint32_t i = 0; i < 2 * kPeers; ++i) {
        uint32_t& at = next[i / 2][i % 2];
        while (at < kWrites) {
          const Signal signal{.grant = {}, .transfer = i % 2, .chunk = at, .chunks = kWrites, .checksum = 0};
          std::vector<Op> ops{SignalledWriteOf(a, regions[i / 2], (at + i % 2 * kWrites) * 128, 128, signal)};
          if (a.side->TryPost(LinkId{i / 2 + 1}, i % 2, ops) == 0) {
            ++waiting;
            break;
          }
          ++at;
          ++posted;
        }
      }
      return posted == 2 * kPeers * kWrites && a.side->pending() == 0;
    })) << posted;
    EXPECT_GT(waiting, 0U) << "nothing was ever full";
    for (const auto& [cookie, done] : a.side->completions) EXPECT_EQ(done.code, Code::kOk);
    EXPECT_TRUE(a.side->lanes_down.empty() && a.side->down.empty());
    for (Node& peer : peers) {
      ASSERT_TRUE(pump([&] { return peer.side->signals.size() == 2 * kWrites; }))
          << peer.side->signals.size();
      EXPECT_TRUE(peer.side->lanes_down.empty() && peer.side->down.empty());
      EXPECT_TRUE(SameBytes(peer.memory->bytes().first(2 * kWrites * 128),
                            a.memory->bytes().first(2 * kWrites * 128)));
    }
    for (Node& peer : peers) {
      world.fabric.Kill(*peer.host);
      peer.side.reset();
    }
  }
};

// 6 peers with 3 queue pairs each, whose completions alone take 36 entries.
TEST_F(VerbsFullQueuesTest, ACompletionQueueWithoutRoomForMore) { FanOut(Tiny(52, 16, 1024)); }
TEST_F(VerbsFullQueuesTest, ACompletionQueueOfWhichReceivesTakeHalf) { FanOut(Tiny(80, 1024, 1024)); }
TEST_F(VerbsFullQueuesTest, AReceiveQueueOfFour) { FanOut(Tiny(2048, 4, 1024)); }
TEST_F(VerbsFullQueuesTest, SendQueuesOfTwo) { FanOut(Tiny(2048, 256, 2)); }
TEST_F(VerbsFullQueuesTest, AllOfIt) { FanOut(Tiny(48, 8, 3)); }

TEST_F(VerbsFullQueuesTest, OneMoreQueuePairThanTheCompletionQueueHoldsIsRefused) {
  a = world.Start(Tiny(32, 16, 64));
  b = world.Start();
  uint32_t opened = 0;
  Status refused;
  for (uint32_t id = 1; id < 20 && refused.ok(); ++id) {
    refused = a.side->transport()
                  .OpenLink(LinkId{id}, Role::kInitiator, b.side->self(), "", Clock::now() + 20s)
                  .status();
    if (refused.ok()) ++opened;
  }
  EXPECT_EQ(refused.code(), Code::kExhausted);
  EXPECT_NE(refused.message().find("completion queue"), std::string::npos);
  EXPECT_EQ(opened, 2U) << "8 queue pairs: four for each offer";
  for (uint32_t id = 1; id <= opened; ++id) ASSERT_TRUE(world.Close(a, LinkId{id}));
  EXPECT_TRUE(world.Connect(a, b)) << "and then there is room again";
}

TEST_F(VerbsFullQueuesTest, BrokenQueuePairsGiveTheirRoomBack) {
  Join(Tiny(64, 16, 64), Tiny(64, 16, 64));
  for (int i = 0; i < 4; ++i) {
    std::vector<Op> ops(40, WriteOf(a, remote, 0, 64));
    world.fabric.Fail(*a.host, fake::Call::kPostSend, 1 + i * 9, ENOMEM);
    (void)a.side->TryPost(Pair::kA, 0, ops);
    ASSERT_TRUE(Until(
        [&] { return a.side->pending() == 0 && a.side->lanes_up.size() == a.side->lanes_down.size(); }));
    ExpectWorks(0);
    ExpectWorks(1);
  }
  EXPECT_FALSE(a.side->down.contains(Pair::kA));
}

}  // namespace
}  // namespace weightcast::transport::verbs
