#include "peertest/check_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/strings.h"
#include "peertest/cluster_report.h"
#include "peertest/rounds.h"
#include "unit/peertest/facts_of_pair.h"

namespace weightcast::peertest {
namespace {

using doctor::Finding;
using doctor::Level;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// All pairs of healthy hosts, "node0" and so on, whose rates are this part of what is usual.
ClusterFacts Healthy(
    size_t hosts,
    const std::function<double(size_t from, size_t to)>& part = [](size_t, size_t) { return 1.0; }) {
  ClusterFacts facts;
  for (size_t i = 0; i < hosts; ++i) {
    HostReport report = HealthyPair().here;
    report.host = StrCat("node", i);
    report.instance = StrCat(i);
    report.address = StrCat("10.0.0.", i);
    facts.hosts.push_back({.target = StrCat("node", i, ":29751"), .report = report});
  }
  for (const auto& round : RoundsOf(hosts)) {
    ++facts.rounds;
    for (const auto& pair : round) {
      PeerFacts one = HealthyPair();
      one.here = facts.hosts[pair.first].report;
      one.there = facts.hosts[pair.second].report;
      one.here.mbit = one.there.mbit = kUnknown;
      one.transports[0].out = {{1 << 20, 9, 20 * part(pair.first, pair.second)}};
      one.transports[0].back = {{1 << 20, 9, 20 * part(pair.second, pair.first)}};
      facts.pairs.push_back({.hosts = pair, .facts = one});
    }
  }
  return facts;
}

std::vector<Finding> Troubles(const ClusterFacts& facts) {
  auto found = CheckCluster(facts);
  std::erase_if(found, [](const Finding& one) { return one.level < Level::kWarn; });
  return found;
}

TEST(Cluster, OfHealthyHostsHasNoTrouble) {
  for (size_t hosts = 2; hosts <= 9; ++hosts) EXPECT_THAT(Troubles(Healthy(hosts)), IsEmpty()) << hosts;
  // Some noise is none.
  EXPECT_THAT(
      Troubles(Healthy(
          6, [](size_t from, size_t to) { return 0.75 + 0.05 * static_cast<double>((from * 7 + to) % 6); })),
      IsEmpty());
}

TEST(Cluster, NamesASlowLinkOfSix) {
  const auto found = Troubles(Healthy(4, [](size_t from, size_t to) { return from + to == 5 ? 0.1 : 1; }));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "bandwidth");
  EXPECT_EQ(found[0].level, Level::kFail);
  EXPECT_THAT(found[0].text, HasSubstr("the link between node"));
  EXPECT_THAT(found[0].text, HasSubstr("10 % of the 20.0 Gbit/s"));
  EXPECT_THAT(found[0].subject, ::testing::AnyOf("node2 <-> node3", "node3 <-> node2"));
  EXPECT_THAT(found[0].remedy, HasSubstr("weightcast doctor --peer node"));
}

TEST(Cluster, NamesAHostWhoseNicIsSlowOneWay) {
  for (size_t hosts = 3; hosts <= 8; ++hosts) {
    const auto out = Troubles(Healthy(hosts, [](size_t from, size_t) { return from == 1 ? 0.4 : 1; }));
    ASSERT_EQ(out.size(), 1U) << hosts;
    EXPECT_EQ(out[0].subject, "node1");
    EXPECT_EQ(out[0].level, Level::kWarn);
    EXPECT_THAT(out[0].text, HasSubstr("the NIC of node1, what it sends"));
    const auto both =
        Troubles(Healthy(hosts, [](size_t from, size_t to) { return from == 1 || to == 1 ? 0.1 : 1; }));
    ASSERT_EQ(both.size(), 1U) << hosts;
    EXPECT_THAT(both[0].text, HasSubstr("the NIC of node1, both directions"));
  }
}

TEST(Cluster, JudgesEachLinkByItsOwnSpeedWhereAllAreKnown) {
  ClusterFacts facts = Healthy(4, [](size_t from, size_t to) { return from == 3 || to == 3 ? 0.05 : 1; });
  for (ClusterPair& one : facts.pairs) {
    for (HostReport* report : {&one.facts.here, &one.facts.there})
      report->mbit = report->host == "node3" ? 1000 : 25'000;
  }
  EXPECT_THAT(Troubles(facts), IsEmpty());
}

TEST(Cluster, NamesWhoDoesNotAnswerAndGoesOn) {
  ClusterFacts facts = Healthy(4);
  facts.hosts[2].failure = {"reach", "refused"};
  facts.hosts[2].report = {};
  std::erase_if(facts.pairs,
                [](const ClusterPair& one) { return one.hosts.first == 2 || one.hosts.second == 2; });
  const auto found = Troubles(facts);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].subject, "node2:29751");
  EXPECT_EQ(found[0].level, Level::kFail);
  EXPECT_THAT(MatrixText(MatrixOf(facts)), HasSubstr("?"));
}

TEST(Cluster, NamesEqualNamesAndOtherReleases) {
  ClusterFacts facts = Healthy(4);
  facts.hosts[3].report.host = "node1";
  facts.hosts[0].report.weightcast = "0.2.0";
  const auto found = Troubles(facts);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_THAT(found[0].text, HasSubstr("2 hosts are called node1"));
  EXPECT_THAT(found[0].evidence, HasSubstr("node1:29751, node3:29751"));
  EXPECT_THAT(found[1].evidence, HasSubstr("0.2.0: node0"));
}

TEST(Cluster, NamesTheHostWhosePathsLosePackets) {
  ClusterFacts facts = Healthy(5);
  for (ClusterPair& one : facts.pairs)
    if (one.hosts.first == 4 || one.hosts.second == 4) one.facts.mtu.out = 1500;
  const auto found = Troubles(facts);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "path_mtu");
  EXPECT_EQ(found[0].subject, "node4");
  EXPECT_THAT(found[0].text, HasSubstr("In all 4 tests with node4"));
}

TEST(Cluster, NamesAPairThatIsNotConnected) {
  ClusterFacts facts = Healthy(4);
  facts.pairs[0].facts.failure = {"reach", "no route"};
  facts.pairs[0].facts.transports.clear();
  const auto found = Troubles(facts);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "reach_connection");
  EXPECT_THAT(found[0].text, HasSubstr("Only between node"));
}

TEST(Cluster, NamesALateHost) {
  ClusterFacts facts = Healthy(5);
  for (ClusterPair& one : facts.pairs)
    if (one.hosts.first == 1 || one.hosts.second == 1) one.facts.transports[0].latency.p50 = 0.02;
  const auto found = Troubles(facts);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "latency");
  EXPECT_EQ(found[0].subject, "node1");
}

TEST(Cluster, TextHasARowForEachHost) {
  const std::string text =
      MatrixText(MatrixOf(Healthy(3, [](size_t from, size_t) { return from == 2 ? 0.1 : 1; })));
  EXPECT_THAT(text, HasSubstr("   1 node0       .    20.0    20.0\n"));
  EXPECT_THAT(text, HasSubstr("   3 node2    2.0!    2.0!       .\n"));
}

TEST(Cluster, HtmlEscapesWhatHostsSay) {
  ClusterFacts facts = Healthy(3);
  facts.hosts[0].report.host = "<script>alert('1')</script>";
  facts.hosts[1].failure = {"reach", "\"><img src=x onerror=alert(1)>"};
  const Matrix matrix = MatrixOf(facts);
  const std::string html = ClusterHtml(facts, matrix, CheckCluster(facts), "0.1.0");
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;"));
  EXPECT_THAT(html, HasSubstr("&quot;&gt;&lt;img"));
  EXPECT_THAT(html, HasSubstr("--bad-ground"));  // The live page's colours.
  EXPECT_THAT(html, Not(HasSubstr("http://")));
  EXPECT_THAT(html, Not(HasSubstr("https://")));
  EXPECT_EQ(EscapeHtml("a&b"), "a&amp;b");
}

}  // namespace
}  // namespace weightcast::peertest
