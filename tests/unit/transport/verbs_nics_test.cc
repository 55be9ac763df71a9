#include <gmock/gmock.h>

#include "unit/transport/verbs_world.h"

// Which devices meet: counts that differ, subnets, InfiniBand, ports, the settings nics and gid_index.

namespace weightcast::transport::verbs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Devices that all reach each other, on one subnet.
fake::HostConfig Flat(int count, int host, std::string_view net = "10.9.0.") {
  fake::HostConfig config{.devices = {}};
  for (int i = 0; i < count; ++i) {
    config.devices.push_back(NicOn(0, StrCat("nic", i)));
    config.devices.back().ports[0].ipv4 = StrCat(net, host * 16 + i + 1);
  }
  return config;
}

Settings WithNics(std::string_view nics) {
  Settings settings = World::OwnSettings();
  settings.nics = nics;
  return settings;
}

class VerbsNicsTest : public VerbsPairTest {
 protected:
  /// What it says to an offer of a's.
  Status AnswerOfB() {
    const LinkId link{++last_link_};
    const TimePoint deadline = Clock::now() + 20s;
    const auto offer = a.side->transport().OpenLink(link, Role::kInitiator, b.side->self(), "", deadline);
    Require(offer.ok(), offer.status().message());
    return b.side->transport().OpenLink(link, Role::kResponder, a.side->self(), *offer, deadline).status();
  }
  void ExpectLanes(uint32_t lanes) {
    EXPECT_EQ(a.side->ready[Pair::kA], lanes);
    EXPECT_EQ(b.side->ready[Pair::kB], lanes);
    for (uint32_t lane = 0; lane < lanes; ++lane) ExpectWorks(lane);
    // And the other way.
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      std::vector<Op> ops{WriteOf(b, back, 0, 4096)};
      ASSERT_EQ(b.side->TryPost(Pair::kB, lane, ops), 1U);
      ASSERT_TRUE(Until([&] { return b.side->Completed(ops[0].cookie); }));
      EXPECT_EQ(b.side->completions[ops[0].cookie].code, Code::kOk);
    }
  }
  [[nodiscard]] uint64_t SentBy(const Node& node, int device) const {
    return world.fabric.CountersOf(*node.host, device).bytes_sent;
  }
  [[nodiscard]] uint64_t ReceivedBy(const Node& node, int device) const {
    return world.fabric.CountersOf(*node.host, device).bytes_received;
  }
  [[nodiscard]] std::string DescribeA() const { return a.side->transport().Describe(Pair::kA); }

 private:
  uint32_t last_link_ = 100;
};

TEST_F(VerbsNicsTest, OneMeetsTwo) {
  Join(Flat(1, 0), Flat(2, 1));
  ExpectLanes(2);
  EXPECT_GT(ReceivedBy(b, 0), 64U << 10);
  EXPECT_GT(ReceivedBy(b, 1), 64U << 10);
  EXPECT_EQ(world.fabric.CountersOf(*a.host, 0).qps, 4);
  // Each with a control queue pair of its own.
  world.fabric.SetLink(*b.host, 0, fake::Link::kDown);
  ASSERT_TRUE(Until([&] { return a.side->lanes_down.size() == 1; }));
  ExpectWorks(1);
}

TEST_F(VerbsNicsTest, OneMeetsTwoWithAsManyLanesAsAreSet) {
  for (const uint32_t lanes : {1U, 2U, 3U, 8U, 63U}) {
    SCOPED_TRACE(lanes);
    Settings settings = World::OwnSettings();
    settings.lanes = lanes;
    Join(Flat(1, 0), Flat(2, 1), settings);
    EXPECT_EQ(a.side->ready[Pair::kA], lanes);
    Join(Flat(2, 0), Flat(1, 1), settings);
    EXPECT_EQ(a.side->ready[Pair::kA], lanes + lanes % 2);
  }
}

TEST_F(VerbsNicsTest, EveryQueuePairHasTheTrafficClass) {
  for (const auto& [text, byte] : {std::pair("", 0), {"af31", 104}, {"106", 106}}) {
    SCOPED_TRACE(text);
    Settings settings = World::OwnSettings();
    settings.traffic_class = text;
    Join(Flat(1, 0), Flat(1, 1), settings);
    ExpectLanes(2);
    for (const Node* node : {&a, &b}) {
      EXPECT_THAT(world.fabric.CountersOf(*node->host, 0).traffic_classes,
                  ::testing::ElementsAre(static_cast<uint8_t>(byte)));
    }
  }
}

TEST_F(VerbsNicsTest, OneMeetsOneAndNothingIsLeftOver) {
  Join(Flat(1, 0), Flat(1, 1));
  ExpectLanes(2);
  for (const Node* node : {&a, &b}) EXPECT_EQ(world.fabric.CountersOf(*node->host, 0).qps, 3);
}

TEST_F(VerbsNicsTest, TwoMeetOneAndShareIt) {
  Join(Flat(2, 0), Flat(1, 1));
  ExpectLanes(4);
  EXPECT_GT(SentBy(a, 0), 64U << 10);
  EXPECT_GT(SentBy(a, 1), 64U << 10);
}

TEST_F(VerbsNicsTest, TwoMeetThree) {
  Join(Flat(2, 0), Flat(3, 1));
  ExpectLanes(4);
  EXPECT_GT(ReceivedBy(b, 0), 64U << 10);
  EXPECT_GT(ReceivedBy(b, 1), 64U << 10);
}

TEST_F(VerbsNicsTest, ThreeMeetTwo) {
  Join(Flat(3, 0), Flat(2, 1));
  ExpectLanes(6);
  for (int device = 0; device < 3; ++device) EXPECT_GT(SentBy(a, device), 64U << 10) << device;
  for (int device = 0; device < 2; ++device) EXPECT_GT(ReceivedBy(b, device), 64U << 10) << device;
}

/// Each rail its own subnet: the ones that both have.
TEST_F(VerbsNicsTest, DevicesMeetOnTheirSubnet) {
  fake::HostConfig turned = Nics(2);
  std::swap(turned.devices[0], turned.devices[1]);
  for (int i = 0; i < 2; ++i) {
    turned.devices[static_cast<size_t>(i)].ports[0].ipv4 = i == 0 ? "10.1.1.77" : "10.0.0.77";
  }
  Join(Nics(2), turned);
  ExpectLanes(4);
  EXPECT_THAT(DescribeA(), HasSubstr("nic0 (10.0.0.1) to 10.0.0.77"));
  EXPECT_THAT(DescribeA(), HasSubstr("nic1 (10.1.1.1) to 10.1.1.77"));
}

TEST_F(VerbsNicsTest, WithoutACommonSubnetTheyMeetInTheirOrder) {
  Join(Flat(2, 0, "10.1.0."), Flat(2, 1, "10.2.0."));
  ExpectLanes(4);
  EXPECT_THAT(DescribeA(), HasSubstr("nic1 (10.1.0.2) to 10.2.0.18"));
}

/// What cannot be reached shows in the probe, and the link has the rest.
TEST_F(VerbsNicsTest, APathThatDoesNotWorkIsNotUsed) {
  a = world.Start(Flat(2, 0));
  b = world.Start(Flat(2, 1));
  world.fabric.SetLink(*b.host, 1, fake::Link::kCut);
  ASSERT_TRUE(world.Connect(a, b));
  ASSERT_TRUE(Until([&] { return a.side->lanes_down.size() == 2 && b.side->lanes_down.size() == 2; }));
  remote = a.side->Import(Pair::kA, b.region);
  ExpectWorks(0);
  ExpectWorks(2);
  EXPECT_THAT(DescribeA(), HasSubstr("2 of them open"));
}

/// One that sends again for longer than there is time is given up half-way, and comes back once it can.
TEST_F(VerbsNicsTest, APathThatStaysSilentDoesNotKeepTheOthers) {
  Settings patient = World::OwnSettings();
  patient.rdma_timeout = 31;  // Hours.
  a = world.Start(Nics(2), patient);
  b = world.Start(Nics(2), patient);
  world.fabric.SetLink(*b.host, 1, fake::Link::kCut);
  ASSERT_TRUE(world.Connect(a, b, 2s));
  ASSERT_TRUE(Until([&] { return a.side->lanes_down.size() == 2 && b.side->lanes_down.size() == 2; }));
  remote = a.side->Import(Pair::kA, b.region);
  ExpectWorks(0);
  world.fabric.SetLink(*b.host, 1, fake::Link::kUp);
  EXPECT_TRUE(Until([&] { return a.side->lanes_up.size() == 2 && b.side->lanes_up.size() == 2; }));
  ExpectWorks(1);
}

TEST_F(VerbsNicsTest, InfiniBandGoesByLids) {
  fake::HostConfig config = Nics(2);
  for (auto& device : config.devices) device.ports[0].infiniband = true;
  Join(config, config);
  ExpectLanes(4);
  EXPECT_THAT(DescribeA(), HasSubstr("LID"));
}

TEST_F(VerbsNicsTest, InfiniBandDoesNotMeetEthernet) {
  fake::HostConfig infiniband = Nics(1);
  infiniband.devices[0].ports[0].infiniband = true;
  a = world.Start(infiniband);
  b = world.Start(Nics(1));
  EXPECT_EQ(AnswerOfB().code(), Code::kUnavailable);
  EXPECT_THAT(AnswerOfB().message(), HasSubstr("InfiniBand and RoCE"));
}

/// One InfiniBand port that is in these partitions.
fake::HostConfig Partitioned(std::vector<uint16_t> keys) {
  fake::HostConfig config = Nics(1);
  config.devices[0].ports[0].infiniband = true;
  config.devices[0].ports[0].pkeys = std::move(keys);
  return config;
}

TEST_F(VerbsNicsTest, AFullMemberOfAPartitionComesBeforeALimitedOne) {
  Join(Partitioned({0x7fff, 0x8001}), Partitioned({0x7fff, 0, 0x8001}));
  ExpectWorks();
  Join(Partitioned({0x7fff}), Partitioned({0xffff}));
  ExpectWorks();
}

TEST_F(VerbsNicsTest, PartitionsThatDifferAreRefusedAndTheSettingChooses) {
  const auto join = [&](uint16_t last) {
    a = world.Start(Partitioned({0x7fff, 0x8001, 0x8002}));
    b = world.Start(Partitioned({0x7fff, 0x8002, last}));
    return AnswerOfB().message();
  };
  EXPECT_THAT(join(0x8001), AllOf(HasSubstr("0x8001 and 0x8002"), HasSubstr("setting pkey")));
  Settings settings = World::OwnSettings();
  settings.pkey = "0x8001";
  Join(Partitioned({0x7fff, 0x8001, 0x8002}), Partitioned({0x7fff, 0x8002, 0x0001}), settings);
  ExpectWorks();
  a = world.Start(Partitioned({0x7fff, 0x8002}), settings);
  const auto offer = a.side->transport().OpenLink(Pair::kA, Role::kInitiator, 1, "", Clock::now() + 20s);
  EXPECT_THAT(offer.status().message(),
              AllOf(HasSubstr("no 0x8001 but 0x7fff, 0x8002; change setting pkey")));
}

TEST_F(VerbsNicsTest, TwoLimitedMembersAreRefused) {
  a = world.Start(Partitioned({0x7fff}));
  b = world.Start(Partitioned({0x7fff}));
  EXPECT_THAT(AnswerOfB().message(), HasSubstr("0x7fff and 0x7fff"));
}

TEST_F(VerbsNicsTest, APortThatWantsAGlobalRouteHeaderGetsIt) {
  fake::HostConfig function = Partitioned({0xffff});
  function.devices[0].ports[0].grh_required = true;
  const fake::HostConfig whole = Partitioned({0xffff});
  for (const auto& [one, other] : {std::pair(function, whole), std::pair(whole, function)}) {
    Join(one, other);
    ExpectWorks();
  }
}

TEST_F(VerbsNicsTest, InfiniBandSubnetsDoNotMeet) {
  fake::HostConfig other = Partitioned({0xffff});
  other.devices[0].ports[0].subnet_prefix = 0xfec0ULL << 48;
  a = world.Start(other);
  b = world.Start(Partitioned({0xffff}));
  EXPECT_THAT(AnswerOfB().message(), HasSubstr("subnets of different prefixes"));
}

fake::HostConfig TwoPorts() {
  fake::HostConfig config = Nics(1);
  config.devices[0].name = "dual";
  config.devices[0].ports.push_back({.rail = 1});
  return config;
}

TEST_F(VerbsNicsTest, TwoPortsAreTwoNics) {
  fake::HostConfig config = TwoPorts();
  Join(config, config, WithNics(""));
  ExpectLanes(4);
  EXPECT_THAT(DescribeA(), HasSubstr("dual:1 ("));
  EXPECT_THAT(DescribeA(), HasSubstr("dual:2 ("));
}

TEST_F(VerbsNicsTest, TheSettingNamesDevicesAndPorts) {
  const struct {
    std::string_view setting;
    std::string_view used;
    std::string_view unused;
  } cases[] = {{"nic1", "nic1", "nic0"},
               {"^nic0", "nic1", "nic0"},
               {"nic0,nic9", "nic0", "nic1"},
               {"^nic1,nic9", "nic0", "nic1"},
               {",nic1,", "nic1", "nic0"}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.setting);
    Join(Nics(2), Nics(2), WithNics(one.setting));
    EXPECT_THAT(DescribeA(), HasSubstr(std::string(one.used)));
    EXPECT_THAT(DescribeA(), Not(HasSubstr(std::string(one.unused))));
    ExpectLanes(2);
  }
  for (const std::string_view setting : {"dual:2", "^dual:1"}) {
    SCOPED_TRACE(setting);
    Join(TwoPorts(), TwoPorts(), WithNics(setting));
    EXPECT_THAT(DescribeA(), HasSubstr("dual:2"));
    EXPECT_THAT(DescribeA(), Not(HasSubstr("dual:1")));
    ExpectLanes(2);
  }
  Join(TwoPorts(), TwoPorts(), WithNics("dual"));
  ExpectLanes(4);
}

TEST_F(VerbsNicsTest, ASettingThatLeavesNoneSaysSo) {
  for (const std::string_view setting : {"mlx5_7", "^nic0,nic1"}) {
    const auto made =
        VerbsTransport::Create({.settings = WithNics(setting), .self = 1}, world.fabric.NewHost(Nics(2)));
    EXPECT_EQ(made.status().code(), Code::kUnavailable);
    EXPECT_THAT(made.status().message(), HasSubstr(std::string(setting)));
    EXPECT_THAT(made.status().message(), HasSubstr("nic0, nic1"));
  }
}

TEST_F(VerbsNicsTest, TheGidIsRoceV2OverIPv4UnlessTheSettingSaysOtherwise) {
  fake::HostConfig config = Nics(1);
  config.devices[0].ports[0].roce_v1 = true;  // v1 and v2 in turn: 3 is v2 over IPv4.
  Join(config, config);
  EXPECT_THAT(DescribeA(), HasSubstr("10.0.0."));
  ExpectLanes(2);
  Settings settings = World::OwnSettings();
  settings.gid_index = "1";
  Join(config, config, settings);
  EXPECT_THAT(DescribeA(), HasSubstr("fe80"));
  ExpectLanes(2);
}

TEST_F(VerbsNicsTest, APortWithoutAUsableGidSaysWhy) {
  Settings settings = World::OwnSettings();
  settings.gid_index = "9";
  const auto offer_of = [](const Node& node) {
    return node.side->transport().OpenLink(Pair::kA, Role::kInitiator, 99, "", Clock::now() + 20s).status();
  };
  a = world.Start(Nics(1), settings);
  EXPECT_EQ(offer_of(a).code(), Code::kUnavailable);
  EXPECT_THAT(offer_of(a).message(), HasSubstr("gid_index"));
  const auto host = world.fabric.NewHost(Nics(1));
  world.fabric.Fail(*host, fake::Call::kQueryGid, 1, ENODATA, 1000);
  const auto made = VerbsTransport::Create({.settings = {}, .self = 1}, host);
  ASSERT_TRUE(made.ok()) << "its interface may get an address yet";
  const auto offer = (*made)->OpenLink(Pair::kA, Role::kInitiator, 99, "", Clock::now() + 20s);
  EXPECT_THAT(offer.status().message(), HasSubstr("no RoCE v2"));
}

}  // namespace
}  // namespace weightcast::transport::verbs
