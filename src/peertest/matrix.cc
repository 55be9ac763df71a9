#include <algorithm>
#include <map>

#include "base/statistics.h"
#include "peertest/check_cluster.h"
#include "peertest/check_peer.h"
#include "peertest/units.h"

namespace weightcast::peertest {
namespace {

constexpr double kLateFactor = 4;
constexpr double kLateLeast = 5e-3;  ///< Seconds: less may be the processors of busy hosts.

const TransportFacts* FactsOf(const PeerFacts& facts, std::string_view name) {
  const auto found = std::ranges::find(facts.transports, name, &TransportFacts::name);
  return found == facts.transports.end() || found->out.empty() || found->back.empty() ? nullptr : &*found;
}

std::string_view TransportOf(const ClusterFacts& facts) {
  const auto count = [&](std::string_view name) {
    return std::ranges::count_if(facts.pairs,
                                 [&](const ClusterPair& one) { return FactsOf(one.facts, name); });
  };
  return count("verbs") > 0 && count("verbs") >= count("tcp") ? "verbs" : "tcp";
}

/// Host names, or targets where two hosts have one name.
std::vector<std::string> NamesOf(const ClusterFacts& facts) {
  std::map<std::string, size_t> count;
  for (const ClusterHost& one : facts.hosts) ++count[one.report.host];
  std::vector<std::string> names;
  for (const ClusterHost& one : facts.hosts)
    names.push_back(one.report.host.empty() || count[one.report.host] > 1 ? one.target : one.report.host);
  return names;
}

/// Of healthy pairs: what a quarter of all reach or exceed. The median would be a slow one where one of three
/// hosts is slow.
double UsualOf(const std::vector<double>& rates) { return rates.empty() ? 0 : Quantile(rates, 0.75); }

}  // namespace

Matrix MatrixOf(const ClusterFacts& facts) {
  const size_t hosts = facts.hosts.size();
  Matrix matrix{.names = NamesOf(facts),
                .gbit = {hosts, std::vector<std::optional<double>>(hosts)},
                .latency = {hosts, std::vector<std::optional<double>>(hosts)},
                .slow = {hosts, std::vector<bool>(hosts)},
                .late = {hosts, std::vector<bool>(hosts)}};
  const std::string_view name = TransportOf(facts);
  std::vector<double> parts;
  std::vector<double> rates;
  std::vector<double> latencies;
  std::map<HostPair, double> part_of;
  // Against each link's own speed, where all are known: a slower link is not a slow one.
  const bool known = std::ranges::all_of(facts.pairs, [&](const ClusterPair& one) {
    return FactsOf(one.facts, name) == nullptr || LinkGbit(one.facts.here, one.facts.there) > 0;
  });
  for (const ClusterPair& pair : facts.pairs) {
    const TransportFacts* transport = FactsOf(pair.facts, name);
    if (transport == nullptr) continue;
    const auto [a, b] = pair.hosts;
    double link = known ? LinkGbit(pair.facts.here, pair.facts.there) : 1;
    if (known && name == "tcp") link = std::min(link, kTcpEnough);
    const auto add = [&](size_t from, size_t to, double gbit) {
      matrix.gbit[from][to] = gbit;
      matrix.latency[from][to] = transport->latency.p50;
      latencies.push_back(transport->latency.p50);
      part_of[{from, to}] = gbit / link;
      parts.push_back(gbit / link);
      rates.push_back(gbit);
    };
    add(a, b, BestGbit(transport->out));
    add(b, a, BestGbit(transport->back));
  }
  const double usual = UsualOf(parts);
  matrix.usual = UsualOf(rates);
  matrix.usual_latency = Median(latencies);
  for (const auto& [pair, part] : part_of) {
    const auto [from, to] = pair;
    matrix.slow[from][to] = part < kSlowWarn * usual;
    matrix.late[from][to] = *matrix.latency[from][to] > kLateFactor * matrix.usual_latency + kLateLeast;
  }
  return matrix;
}

}  // namespace weightcast::peertest
