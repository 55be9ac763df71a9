#include "peertest/check_cluster.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/statistics.h"
#include "base/strings.h"
#include "peertest/attribute.h"
#include "peertest/check_peer.h"
#include "peertest/units.h"

namespace weightcast::peertest {
namespace {

using doctor::Finding;
using doctor::Findings;
using doctor::Level;

constexpr size_t kMostNamed = 20;  ///< Of one kind; how many more there are is said.
constexpr size_t kMostListed = 5;

std::string WordsOf(const Culprit& culprit, const std::vector<std::string>& names) {
  switch (culprit.kind) {
    case Culprit::Kind::kHostOut:
      return StrCat("the NIC of ", names[culprit.from], ", what it sends");
    case Culprit::Kind::kHostIn:
      return StrCat("the NIC of ", names[culprit.from], ", what it receives");
    case Culprit::Kind::kHost:
      return StrCat("the NIC of ", names[culprit.from], ", both directions");
    case Culprit::Kind::kLink:
      return StrCat("the link from ", names[culprit.from], " to ", names[culprit.to]);
    case Culprit::Kind::kLinkBoth:
      break;
  }
  return StrCat("the link between ", names[culprit.from], " and ", names[culprit.to]);
}

bool Explains(const Culprit& culprit, const HostPair& pair) {
  switch (culprit.kind) {
    case Culprit::Kind::kHostOut:
      return pair.first == culprit.from;
    case Culprit::Kind::kHostIn:
      return pair.second == culprit.from;
    case Culprit::Kind::kHost:
      return pair.first == culprit.from || pair.second == culprit.from;
    case Culprit::Kind::kLink:
      return pair == HostPair(culprit.from, culprit.to);
    case Culprit::Kind::kLinkBoth:
      break;
  }
  return pair == HostPair(culprit.from, culprit.to) || pair == HostPair(culprit.to, culprit.from);
}

bool IsLink(const Culprit& culprit) {
  return culprit.kind == Culprit::Kind::kLink || culprit.kind == Culprit::Kind::kLinkBoth;
}

std::string SubjectOf(const Culprit& culprit, const std::vector<std::string>& names) {
  if (!IsLink(culprit)) return names[culprit.from];
  return StrCat(names[culprit.from], culprit.kind == Culprit::Kind::kLink ? " -> " : " <-> ",
                names[culprit.to]);
}

void CheckHosts(const ClusterFacts& facts, const Matrix& matrix, Findings& findings) {
  std::map<std::string, std::vector<std::string>> by_name;
  std::map<std::string, std::vector<std::string>> by_version;
  size_t present = 0;
  for (size_t i = 0; i < facts.hosts.size(); ++i) {
    const ClusterHost& host = facts.hosts[i];
    if (!host.failure.stage.empty()) {
      Finding finding{.check = "host",
                      .subject = host.target,
                      .text = StrCat(host.target, " takes part in no test."),
                      .evidence = host.failure.text,
                      .remedy = "weightcast doctor --serve  # on that host, with the same token and release"};
      findings.Fail(std::move(finding));
      continue;
    }
    ++present;
    by_name[host.report.host].push_back(host.target);
    by_version[host.report.weightcast].push_back(matrix.names[i]);
  }
  if (present > 0)
    findings.Ok({.check = "hosts", .text = StrCat(present, " of ", facts.hosts.size(), " hosts answer.")});
  for (const auto& [name, targets] : by_name) {
    if (targets.size() < 2) continue;
    findings.Warn({.check = "name",
                   .subject = name,
                   .text = StrCat(targets.size(), " hosts are called ", name,
                                  ". Launchers and libraries that group ranks by host name mix them up."),
                   .evidence = JoinSome(targets, kMostListed),
                   .remedy = "hostnamectl set-hostname NAME  # one of its own for each host"});
  }
  if (by_version.size() < 2) return;
  const auto of_version = [](const auto& each) {
    return StrCat(each.first, ": ", JoinSome(each.second, kMostListed));
  };
  findings.Warn({.check = "version",
                 .text = StrCat("The hosts have ", by_version.size(), " versions of weightcast."),
                 .evidence = Join(by_version, "; ", of_version),
                 .remedy = "weightcast --version  # on each host: install one release on all"});
}

/// One check of single pairs, such as path.mtu: who explains that it is bad in these.
struct PairTrouble {
  std::vector<HostPair> bad;  ///< Both directions of each.
  Finding worst;
};

void Both(std::vector<HostPair>& list, const HostPair& pair) {
  list.push_back(pair);
  list.emplace_back(pair.second, pair.first);
}

void AddTrouble(const ClusterFacts& facts, const Matrix& matrix, const std::vector<HostPair>& tested,
                const PairTrouble& trouble, Findings& findings) {
  size_t named = 0;
  const auto culprits = Attribute(facts.hosts.size(), tested, trouble.bad);
  for (const Culprit& culprit : culprits) {
    if (++named > kMostNamed) break;
    const auto count =
        std::ranges::count_if(trouble.bad, [&](const HostPair& one) { return Explains(culprit, one); });
    Finding finding = trouble.worst;
    finding.subject = SubjectOf(culprit, matrix.names);
    finding.text = IsLink(culprit) ? StrCat("Only between ", matrix.names[culprit.from], " and ",
                                            matrix.names[culprit.to], ": ", finding.text)
                                   : StrCat("In all ", count / 2, " tests with ", matrix.names[culprit.from],
                                            ": ", finding.text);
    findings.Add(finding.level, std::move(finding));
  }
  if (named > kMostNamed)
    findings.Warn({.check = trouble.worst.check,
                   .text = StrCat(culprits.size() - kMostNamed, " more pairs have the same trouble.")});
}

/// What CheckPeer finds in single pairs. Rates are judged against other pairs, names and versions by host.
void CheckPairs(const ClusterFacts& facts, const Matrix& matrix, Findings& findings) {
  static const std::set<std::string> kByMatrix = {"tcp.bandwidth", "verbs.bandwidth", "reach.name",
                                                  "reach.version"};
  std::vector<HostPair> tested;
  std::map<std::string, PairTrouble> troubles;
  for (const ClusterPair& pair : facts.pairs) {
    Both(tested, pair.hosts);
    for (const Finding& one : CheckPeer(pair.facts)) {
      const std::string name = StrCat(one.group, ".", one.check);
      const bool broken = name == "tcp.bandwidth" && one.level == Level::kFail &&
                          !pair.facts.transports.empty() && !pair.facts.transports.front().error.empty();
      if (one.level < Level::kWarn || (kByMatrix.contains(name) && !broken)) continue;
      PairTrouble& trouble = troubles[name];
      Both(trouble.bad, pair.hosts);
      if (trouble.worst.check.empty() || trouble.worst.level < one.level) {
        trouble.worst = one;
        trouble.worst.check = StrCat(one.group, "_", one.check);
      }
    }
  }
  for (const auto& [name, trouble] : troubles) AddTrouble(facts, matrix, tested, trouble, findings);
  if (!tested.empty() && troubles.empty())
    findings.Ok({.check = "pairs",
                 .text = StrCat(tested.size() / 2, " pairs were tested in ", facts.rounds,
                                " rounds, and each way is open.")});
}

/// Why this is to blame: which pairs say so, and how much they have.
Finding SlowFinding(const Culprit& culprit, const Matrix& matrix, const std::vector<HostPair>& slow) {
  std::vector<double> rates;
  std::string evidence;
  for (const HostPair& one : slow) {
    if (!Explains(culprit, one)) continue;
    const double gbit = *matrix.gbit[one.first][one.second];
    rates.push_back(gbit);
    constexpr size_t kShown = 6;
    if (rates.size() <= kShown)
      evidence += StrCat(evidence.empty() ? "" : ", ", matrix.names[one.first], " -> ",
                         matrix.names[one.second], " ", GbitText(gbit));
  }
  const double part = Median(rates) / matrix.usual;
  Finding finding{.level = part < kSlowFail ? Level::kFail : Level::kWarn,
                  .check = "bandwidth",
                  .subject = SubjectOf(culprit, matrix.names),
                  .text = StrCat("Slow: ", WordsOf(culprit, matrix.names), ", with ", PercentText(part),
                                 " of the ", GbitText(matrix.usual), " of other pairs."),
                  .evidence = evidence};
  finding.remedy = IsLink(culprit) ? StrCat("weightcast doctor --peer ", matrix.names[culprit.to], "  # on ",
                                            matrix.names[culprit.from],
                                            "; then the cables and switch ports between the two")
                                   : StrCat("weightcast doctor; ethtool IFACE; ethtool -S IFACE  # on ",
                                            matrix.names[culprit.from], "; then its cable and switch port");
  return finding;
}

/// Those that were measured, and those of them that are bad.
std::pair<std::vector<HostPair>, std::vector<HostPair>> PairsOf(
    const std::vector<std::vector<std::optional<double>>>& measured,
    const std::vector<std::vector<bool>>& bad) {
  std::pair<std::vector<HostPair>, std::vector<HostPair>> pairs;
  for (size_t from = 0; from < measured.size(); ++from) {
    for (size_t to = 0; to < measured.size(); ++to) {
      if (!measured[from][to]) continue;
      pairs.first.emplace_back(from, to);
      if (bad[from][to]) pairs.second.emplace_back(from, to);
    }
  }
  return pairs;
}

void CheckRates(const Matrix& matrix, Findings& findings) {
  const auto [tested, slow] = PairsOf(matrix.gbit, matrix.slow);
  if (tested.empty())
    return findings.NotApplicable({.check = "bandwidth", .text = "No pair has measured its bandwidth."});
  if (slow.empty())
    return findings.Ok({.check = "bandwidth",
                        .text = StrCat("All pairs have about the same: ", GbitText(matrix.usual), ".")});
  size_t named = 0;
  for (const Culprit& culprit : Attribute(matrix.names.size(), tested, slow)) {
    if (++named > kMostNamed) break;
    const Finding finding = SlowFinding(culprit, matrix, slow);
    findings.Add(finding.level, finding);
  }
  if (named > kMostNamed)
    findings.Warn({.check = "bandwidth", .text = StrCat("More links are slow; see the matrix.")});
}

/// All pairs alike may still be slow.
void CheckAgainstLink(const ClusterFacts& facts, const Matrix& matrix, Findings& findings) {
  std::vector<double> links;
  for (const ClusterPair& pair : facts.pairs) {
    const double link = LinkGbit(pair.facts.here, pair.facts.there);
    if (link > 0) links.push_back(link);
  }
  const double link = std::min(Median(links), kTcpEnough);
  if (link <= 0 || matrix.usual <= 0 || matrix.usual >= kSlowWarn * link) return;
  findings.Warn({.check = "link_speed",
                 .text = StrCat("All pairs are below their links: ", GbitText(matrix.usual), " of ",
                                GbitText(link), "."),
                 .evidence = "speed of the interfaces in /sys/class/net",
                 .remedy = "weightcast doctor  # on one of the hosts: CPU governor, PCIe width, MTU"});
}

void CheckLatencies(const Matrix& matrix, Findings& findings) {
  const double usual = matrix.usual_latency;
  const auto [tested, late] = PairsOf(matrix.latency, matrix.late);
  if (tested.empty()) return;
  if (late.empty())
    return findings.Ok(
        {.check = "latency", .text = StrCat("One way of a small write takes ", TimeText(usual), ".")});
  for (const Culprit& culprit : Attribute(matrix.names.size(), tested, late)) {
    const HostPair one =
        *std::ranges::find_if(late, [&](const HostPair& pair) { return Explains(culprit, pair); });
    findings.Warn(
        {.check = "latency",
         .subject = SubjectOf(culprit, matrix.names),
         .text = StrCat("Late: ", WordsOf(culprit, matrix.names), ". Others take ", TimeText(usual), "."),
         .evidence = StrCat(matrix.names[one.first], " -> ", matrix.names[one.second], " ",
                            TimeText(*matrix.latency[one.first][one.second]), " (p50, one way)"),
         .remedy = StrCat("weightcast doctor --peer ", matrix.names[one.second], "  # on ",
                          matrix.names[one.first])});
  }
}

}  // namespace

std::vector<HostPair> DoubtfulPairs(const ClusterFacts& facts) {
  const Matrix matrix = MatrixOf(facts);
  std::vector<HostPair> pairs;
  for (const ClusterPair& pair : facts.pairs) {
    const auto [a, b] = pair.hosts;
    const bool failed = std::ranges::any_of(pair.facts.transports,
                                            [](const TransportFacts& one) { return !one.error.empty(); });
    if (failed || matrix.slow[a][b] || matrix.slow[b][a] || matrix.late[a][b] || matrix.late[b][a])
      pairs.push_back(pair.hosts);
  }
  return pairs;
}

std::vector<Finding> CheckCluster(const ClusterFacts& facts) {
  const Matrix matrix = MatrixOf(facts);
  Findings findings("hosts");
  CheckHosts(facts, matrix, findings);
  findings.Begin("network");
  CheckPairs(facts, matrix, findings);
  CheckRates(matrix, findings);
  CheckAgainstLink(facts, matrix, findings);
  CheckLatencies(matrix, findings);
  return findings.Take();
}

}  // namespace weightcast::peertest
