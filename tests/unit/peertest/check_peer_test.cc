#include "peertest/check_peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/strings.h"
#include "unit/peertest/facts_of_pair.h"

namespace weightcast::peertest {
namespace {

using doctor::Finding;
using doctor::Level;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Troubles(const std::vector<Finding>& findings) {
  std::vector<std::string> found;
  for (const Finding& one : findings)
    if (one.level >= Level::kWarn) found.push_back(StrCat(one.group, ".", one.check, ": ", one.text));
  return found;
}

TEST(CheckPeer, FindsNothingBetweenHealthyHosts) {
  const auto findings = CheckPeer(HealthyPair());
  EXPECT_THAT(Troubles(findings), IsEmpty());
  for (const char* name :
       {"reach.connection", "reach.version", "reach.name", "reach.clock", "path.mtu", "path.data_ports",
        "tcp.connection", "tcp.latency", "tcp.bandwidth", "classes.priority"})
    EXPECT_TRUE(std::ranges::any_of(findings, [&](const Finding& one) {
      return one.level == Level::kOk && StrCat(one.group, ".", one.check) == name;
    })) << name;
}

TEST(CheckPeer, FindsNothingWithRdma) {
  const auto findings = CheckPeer(HealthyRdmaPair());
  EXPECT_THAT(Troubles(findings), IsEmpty());
  for (const char* check : {"connection", "latency", "device_latency", "bandwidth"})
    EXPECT_TRUE(std::ranges::any_of(findings, [&](const Finding& one) {
      return one.level == Level::kOk && one.group == "verbs" && one.check == check;
    })) << check;
}

// What looks like a fault and is none.
TEST(CheckPeer, NotOfRdmaThatASettingLeavesOut) {
  PeerFacts facts = HealthyPair();
  facts.here.rdma = "no RDMA port that setting nics leaves in";
  facts.there.rdma = "";
  EXPECT_THAT(Troubles(CheckPeer(facts)), IsEmpty());
}

TEST(CheckPeer, NotOfAFewLateMessagesAndAFewTimeOuts) {
  PeerFacts facts = HealthyRdmaPair();
  facts.transports[1].device.jitter = 4e-3;  // The mean, by those few.
  facts.transports[1].sent_here = {{"mlx5_0:1", 900'000, 90}};
  EXPECT_THAT(Troubles(CheckPeer(facts)), IsEmpty());
}

TEST(CheckPeer, TcpOverAFastLinkIsAskedForWhatCoresMove) {
  PeerFacts facts = HealthyPair();
  facts.here.mbit = facts.there.mbit = 400'000;
  EXPECT_THAT(Troubles(CheckPeer(facts)), IsEmpty());
  // Verbs is asked for the link.
  facts.transports[1] = facts.transports[0];
  facts.transports[1].name = "verbs";
  EXPECT_EQ(Troubles(CheckPeer(facts)).size(), 1U);
}

struct Fault {
  std::string name;
  std::string check;
  Level level;
  std::string text;    ///< Part of it.
  std::string remedy;  ///< Part of it.
  std::function<void(PeerFacts&)> plant;
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

class Planted : public ::testing::TestWithParam<Fault> {};

TEST_P(Planted, IsFoundAndNamedWithItsRemedyAndNothingElse) {
  const Fault& fault = GetParam();
  PeerFacts facts = HealthyPair();
  fault.plant(facts);
  const auto findings = CheckPeer(facts);
  ASSERT_EQ(Troubles(findings).size(), 1U) << ::testing::PrintToString(Troubles(findings));
  for (const Finding& one : findings) {
    if (one.level < Level::kWarn) continue;
    EXPECT_EQ(StrCat(one.group, ".", one.check), fault.check);
    EXPECT_EQ(one.level, fault.level);
    EXPECT_THAT(one.text, HasSubstr(fault.text));
    EXPECT_THAT(one.remedy, HasSubstr(fault.remedy));
    EXPECT_FALSE(one.evidence.empty());
  }
}

void Break(PeerFacts& facts, const char* stage) {
  facts = PeerFacts{.target = "node2:29751", .failure = {stage, "what was seen"}};
}

INSTANTIATE_TEST_SUITE_P(
    CheckPeer, Planted,
    ::testing::Values(
        Fault{"unreachable", "reach.connection", Level::kFail, "not reached", "ip route get node2",
              [](PeerFacts& facts) { Break(facts, "reach"); }},
        Fault{"token", "reach.token", Level::kFail, "different tokens", "WEIGHTCAST_TOKEN_FILE",
              [](PeerFacts& facts) { Break(facts, "token"); }},
        Fault{"other_protocol", "reach.version", Level::kFail, "of this version", "weightcast --version",
              [](PeerFacts& facts) { Break(facts, "version"); }},
        Fault{"busy", "reach.busy", Level::kFail, "another test", "weightcast doctor --peer node2",
              [](PeerFacts& facts) { Break(facts, "busy"); }},
        Fault{"other_release", "reach.version", Level::kWarn, "0.1.0 here and 0.2.0 there",
              "weightcast --version", [](PeerFacts& facts) { facts.there.weightcast = "0.2.0"; }},
        Fault{"other_wire", "reach.version", Level::kFail, "do not understand", "weightcast --version",
              [](PeerFacts& facts) { facts.there.wire = 2; }},
        Fault{"equal_names", "reach.name", Level::kWarn, "called node1", "hostnamectl set-hostname",
              [](PeerFacts& facts) { facts.there.host = "node1"; }},
        Fault{"clock", "reach.clock", Level::kWarn, "behind", "timedatectl",
              [](PeerFacts& facts) { facts.clock_ahead = -3600; }},
        Fault{"mtu_differs", "path.mtu", Level::kWarn, "9000 on eth0 of node1, 1500 on eth0 of node2",
              "ip link set dev eth0 mtu 1500  # on node1",
              [](PeerFacts& facts) {
                facts.there.mtu = 1500;
                facts.mtu = {.out = 1500, .back = 1500};
              }},
        Fault{"mtu_of_the_path", "path.mtu", Level::kFail, "above 1500 bytes vanish", "mtu 1500",
              [](PeerFacts& facts) { facts.mtu.out = 1500; }},
        Fault{"mtu_announced", "path.mtu", Level::kWarn, "says so", "tracepath",
              [](PeerFacts& facts) { facts.mtu = {.out = 1400, .back = 1400, .announced = true}; }},
        Fault{"ports_closed", "path.data_ports", Level::kFail, "Neither host", "WEIGHTCAST_PORT_RANGE",
              [](PeerFacts& facts) {
                facts.ports.out = {"a"};
                facts.ports.back = {"b"};
              }},
        Fault{"port_closed_there", "path.data_ports", Level::kWarn, "on the way to node2", "nft list ruleset",
              [](PeerFacts& facts) { facts.ports.out = {"a"}; }},
        Fault{"port_closed_here", "path.data_ports", Level::kWarn, "back from node2", "nft list ruleset",
              [](PeerFacts& facts) { facts.ports.back = {"a"}; }},
        Fault{"no_tcp", "tcp.connection", Level::kFail, "no connection over tcp", "WEIGHTCAST_LOG_LEVEL",
              [](PeerFacts& facts) { facts.transports[0] = {.name = "tcp", .error = "refused"}; }},
        Fault{"large_messages", "tcp.bandwidth", Level::kFail, "large ones do not", "tracepath",
              [](PeerFacts& facts) {
                facts.transports[0].error = "timed out";
                facts.transports[0].out.clear();
              }},
        Fault{"slow", "tcp.bandwidth", Level::kWarn, "the link has 25.0 Gbit/s", "ethtool",
              [](PeerFacts& facts) {
                facts.transports[0].out = {{65536, 9, 6}};
                facts.transports[0].back = {{65536, 9, 6}};
              }},
        Fault{"slow_one_way", "tcp.bandwidth", Level::kFail, "What leaves node2 has 10 %", "ethtool",
              [](PeerFacts& facts) {
                facts.here.mbit = kUnknown;
                facts.transports[0].back = {{65536, 9, 2.2}};
              }},
        Fault{"no_priority", "classes.priority", Level::kWarn, "which setting traffic_class asks for",
              "DSCP",
              [](PeerFacts& facts) {
                facts.classes.chosen = true;
                facts.classes.plain_loaded.p50 = facts.classes.class_loaded.p50 = 0.02;
              }},
        Fault{"tcp_loses_its_class", "classes.priority", Level::kWarn, "tcp that has DSCP 26 waits",
              "rules that set the DSCP",
              [](PeerFacts& facts) { facts.classes.plain_loaded.p50 = facts.classes.plain_marked.p50 = 0.02; }},
        Fault{"jitter", "verbs.device_latency", Level::kWarn, "changes by 2.00 ms", "tc -s qdisc show",
              [](PeerFacts& facts) {
                facts = HealthyRdmaPair();
                facts.transports[1].device = {.samples = 90, .p50 = 5e-3, .jitter_p50 = 2e-3};
              }},
        Fault{"rdma_port_down", "verbs.connection", Level::kWarn, "node1 has no RDMA port that is active",
              "ip link set eth1 up  # on node1",
              [](PeerFacts& facts) {
                facts.here.rdma = "no RDMA port that is active: mlx5_0:1 is DOWN (Disabled)";
                facts.here.rdma_remedy = "ip link set eth1 up";
              }},
        Fault{"rdma_module_missing", "verbs.connection", Level::kWarn, "node1 has no RDMA device, and node2",
              "modprobe mlx5_ib  # on node1", [](PeerFacts& facts) { facts.there.rdma = ""; }},
        Fault{"rdma_loses_packets", "verbs.loss", Level::kWarn, "queue pairs time out", "--pfc 0,0,0,1",
              [](PeerFacts& facts) {
                facts = HealthyRdmaPair();
                facts.transports[1].sent_there = {{"mlx5_0:1", 20'000, 40}};
                facts.transports[1].back = {{1 << 20, 9, 2}};  // By chance, for the same reason.
              }},
        Fault{"rdma_fails_by_loss", "verbs.loss", Level::kFail, "until transfers fail", "weightcast watch",
              [](PeerFacts& facts) {
                facts = HealthyRdmaPair();
                facts.transports[1].error = "retry counter exceeded";
                facts.transports[1].sent_here = {{"mlx5_0:1", 400, 40}};
              }}),
    [](const auto& test) { return test.param.name; });

TEST(CheckPeer, SaysWhetherPriorityHolds) {
  PeerFacts facts = HealthyPair();
  facts.classes.plain_loaded.p50 = facts.classes.class_marked.p50 = 0.02;
  const auto text = [&] { return CheckPeer(facts).back().text; };
  EXPECT_THAT(text(), HasSubstr("Priority holds: packets of DSCP 26 overtake"));
  facts.classes.class_loaded.p50 = 0.019;
  EXPECT_THAT(text(), HasSubstr("wait like all others: no priority is set up"));
  EXPECT_THAT(Troubles(CheckPeer(facts)), IsEmpty());
}

TEST(CheckPeer, GoesOnWithoutUdp) {
  PeerFacts facts = HealthyPair();
  facts.mtu = {.error = "UDP packets do not come back"};
  facts.classes.error = "UDP packets do not come back";
  EXPECT_THAT(Troubles(CheckPeer(facts)), IsEmpty());
}

}  // namespace
}  // namespace weightcast::peertest
