#include <gmock/gmock.h>

#include <deque>

#include "unit/transport/verbs_world.h"

// Two NICs share the work; one goes and comes back.

namespace weightcast::transport::verbs {
namespace {

using ::testing::HasSubstr;

class VerbsPortTest : public VerbsPairTest {
 protected:
  static constexpr uint64_t kBytes = 64 << 20;
  static constexpr uint64_t kPiece = 256 << 10;
  static constexpr uint32_t kLanes = 4;

  void SetUp() override {
    Join(Nics(2), Nics(2), World::OwnSettings(), kBytes);
    a.memory->Fill(3);
  }
  /// All of the region, as much on each lane as it takes, in turn; what is lost goes over lanes that are up.
  /// `half` is called once half of it has completed. False: something else went wrong.
  bool WriteAll(const std::function<void()>& half) {
    std::deque<uint64_t> waiting;
    for (uint64_t at = 0; at < kBytes; at += kPiece) waiting.push_back(at);
    std::map<uint64_t, uint64_t> places;
    uint64_t done = 0;
    uint32_t lane = 0;
    bool told = false;
    return Until([&] {
      for (uint32_t full = 0; !waiting.empty() && full < kLanes && places.size() < 32;) {
        const uint64_t cookie = Post(lane++ % kLanes, WriteOf(a, remote, waiting.front(), kPiece));
        if (cookie == 0) {
          ++full;
          continue;
        }
        full = 0;
        places[cookie] = waiting.front();
        waiting.pop_front();
      }
      for (const auto& [cookie, completion] : a.side->completions) {
        if (completion.code == Code::kOk) {
          ++done;
        } else {
          EXPECT_EQ(completion.code, Code::kUnavailable);
          ++lost;
          waiting.push_back(places[cookie]);
        }
        places.erase(cookie);
      }
      a.side->completions.clear();
      if (!told && done * kPiece >= kBytes / 2) {
        told = true;
        half();
      }
      return done * kPiece == kBytes;
    });
  }
  [[nodiscard]] uint64_t SentBy(int device) const {
    return world.fabric.CountersOf(*a.host, device).bytes_sent;
  }

  uint64_t lost = 0;
};

TEST_F(VerbsPortTest, EqualWorkOnAllLanesIsEqualWorkForBothNics) {
  ASSERT_TRUE(WriteAll([] {}));
  EXPECT_TRUE(SameBytes(a.memory->bytes(), b.memory->bytes()));
  EXPECT_GE(SentBy(0) + SentBy(1), kBytes);
  EXPECT_NEAR(static_cast<double>(SentBy(0)), static_cast<double>(SentBy(1)), 0.05 * kBytes / 2);
  EXPECT_EQ(lost, 0U);
}

/// `at_writer`: the port is the writer's, who is told; else the target's, and the writer finds out.
class VerbsPortSideTest : public VerbsPortTest, public ::testing::WithParamInterface<bool> {};

TEST_P(VerbsPortSideTest, ALinkThatGoesDownIsCarriedByTheOtherAndComesBack) {
  Node& node = GetParam() ? a : b;
  world.fabric.SetDelay(100us, 1ms);  // So that some are under way.
  testing::internal::CaptureStderr();
  uint64_t before = 0;
  ASSERT_TRUE(WriteAll([&] {
    world.fabric.SetLink(*node.host, 0, fake::Link::kDown);
    before = SentBy(1);
  }));
  int turns = 0;
  ASSERT_TRUE(Until([&] { return ++turns > 2000; })) << "devices' events are looked at every so many turns";
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(SameBytes(a.memory->bytes(), b.memory->bytes()));
  EXPECT_GT(lost, 0U);
  EXPECT_GT(SentBy(1), before + kBytes / 4);
  EXPECT_EQ(std::ranges::count(told, '\n'), 1) << told;
  EXPECT_THAT(told, HasSubstr("nic0"));
  EXPECT_EQ(a.side->lanes_down.size(), 2U);
  EXPECT_FALSE(a.side->down.contains(Pair::kA));

  world.fabric.SetLink(*node.host, 0, fake::Link::kUp);
  ASSERT_TRUE(Until([&] { return a.side->lanes_up.size() == 2 && b.side->lanes_up.size() == 2; }));
  const uint64_t nic0 = SentBy(0);
  a.memory->Fill(4);
  ASSERT_TRUE(WriteAll([] {}));
  EXPECT_TRUE(SameBytes(a.memory->bytes(), b.memory->bytes()));
  EXPECT_GT(SentBy(0), nic0 + kBytes / 4) << "it is used again";
}
INSTANTIATE_TEST_SUITE_P(Sides, VerbsPortSideTest, ::testing::Bool(),
                         [](const auto& side) { return side.param ? "Writer" : "Target"; });

/// What is made after a port's address has changed meets the new one.
class VerbsAddressChangeTest : public VerbsPairTest, public ::testing::WithParamInterface<bool> {
 protected:
  void ExpectComesBack(fake::HostConfig config, const fake::PortConfig& next) {
    Join(config, config);
    const Node& node = GetParam() ? a : b;
    world.fabric.SetPort(*node.host, 0, next);
    for (const uint32_t lane : {0, 2}) {  // Towards the old one.
      std::vector<Op> ops{GetParam() ? WriteOf(b, back, 0, 4096) : WriteOf(a, remote, 0, 4096)};
      (GetParam() ? b : a).side->TryPost(GetParam() ? Pair::kB : Pair::kA, lane, ops);
    }
    ASSERT_TRUE(Until([&] { return a.side->lanes_down.size() == 2 && b.side->lanes_down.size() == 2; }));
    ASSERT_TRUE(Until([&] { return a.side->lanes_up.size() == 2 && b.side->lanes_up.size() == 2; }));
    for (uint32_t lane = 0; lane < 4; ++lane) ExpectWorks(lane);
  }
};

TEST_P(VerbsAddressChangeTest, AnotherGidIsMet) {
  fake::PortConfig next = Nics(1).devices[0].ports[0];
  next.ipv4 = "10.0.0.77";
  next.mtu = IBV_MTU_1024;
  ExpectComesBack(Nics(2), next);
}

TEST_P(VerbsAddressChangeTest, AnotherLidIsMet) {
  fake::HostConfig config = Nics(2);
  for (auto& device : config.devices) device.ports[0].infiniband = true;
  fake::PortConfig next = config.devices[0].ports[0];
  next.lid = 1000;
  ExpectComesBack(config, next);
}
INSTANTIATE_TEST_SUITE_P(Sides, VerbsAddressChangeTest, ::testing::Bool(),
                         [](const auto& side) { return side.param ? "Initiator" : "Responder"; });

/// The initiator waits longer and longer for a port that is down; once it is up it waits no more.
TEST_F(VerbsPortTest, APortThatWasDownForLongIsUsedAtOnceWhenItIsUp) {
  testing::internal::CaptureStderr();
  world.fabric.SetLink(*a.host, 0, fake::Link::kDown);
  ASSERT_TRUE(Until([&] { return a.side->lanes_down.size() == 2 && b.side->lanes_down.size() == 2; }));
  // Four tries in vain: the next would come 0.8 s later or more.
  const TimePoint limit = Clock::now() + 1500ms;
  ASSERT_TRUE(Until([&] { return Clock::now() > limit; }));
  world.fabric.SetLink(*a.host, 0, fake::Link::kUp);
  const TimePoint up = Clock::now();
  ASSERT_TRUE(Until([&] { return a.side->lanes_up.size() == 2; }));
  EXPECT_LT(Clock::now() - up, 300ms);
  testing::internal::GetCapturedStderr();
}

/// The kernel blocks while it looks for the peer's hardware address: not for each queue pair and each try.
TEST_F(VerbsPortTest, APeerThatIsNotFoundIsNotLookedForAgainAtOnce) {
  testing::internal::CaptureStderr();
  int looked = 0;
  world.fabric.Before(*b.host, fake::Call::kConnectQp, [&looked] {
    ++looked;
    std::this_thread::sleep_for(110ms);
  });
  world.fabric.Fail(*b.host, fake::Call::kConnectQp, 1, ETIMEDOUT, 1000);
  world.fabric.SetLink(*a.host, 0, fake::Link::kDown);
  ASSERT_TRUE(Until([&] { return a.side->lanes_down.size() == 2; }));
  world.fabric.SetLink(*a.host, 0, fake::Link::kUp);
  const TimePoint limit = Clock::now() + 1s;
  ASSERT_TRUE(Until([&] { return Clock::now() > limit; }));
  EXPECT_EQ(looked, 1) << "of three queue pairs, tried about every 0.2 s";
  // Something changes at the port: it is looked for, and found.
  world.fabric.Fail(*b.host, fake::Call::kConnectQp, 1, 0, 0);
  world.fabric.Inject(*b.host, 0, IBV_EVENT_GID_CHANGE);
  EXPECT_TRUE(Until([&] { return a.side->lanes_up.size() == 2; }));
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace weightcast::transport::verbs
