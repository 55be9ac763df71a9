#include "peertest/attribute.h"

#include <algorithm>
#include <set>

namespace weightcast::peertest {
namespace {

constexpr size_t kFewestPairs = 2;
constexpr double kNearlyAll = 0.75;

/// All pairs of one direction of a host.
struct Line {
  size_t host = 0;
  bool out = false;
  [[nodiscard]] bool Has(const HostPair& pair) const { return (out ? pair.first : pair.second) == host; }
  [[nodiscard]] size_t CountIn(const std::vector<HostPair>& pairs) const {
    return static_cast<size_t>(std::ranges::count_if(pairs, [&](const HostPair& one) { return Has(one); }));
  }
};

bool IsBad(const Line& line, const std::vector<HostPair>& tested, const std::vector<HostPair>& bad) {
  const size_t all = line.CountIn(tested);
  const size_t count = line.CountIn(bad);
  return count >= kFewestPairs && static_cast<double>(count) >= kNearlyAll * static_cast<double>(all);
}

std::vector<Line> BadLines(size_t hosts, const std::vector<HostPair>& tested,
                           const std::vector<HostPair>& bad) {
  std::vector<Line> lines;
  for (size_t host = 0; host < hosts; ++host) {
    for (const bool out : {true, false}) {
      const Line line{host, out};
      if (IsBad(line, tested, bad)) lines.push_back(line);
    }
  }
  return lines;
}

void AddHost(std::vector<Culprit>& culprits, const Line& line) {
  const auto same = std::ranges::find_if(culprits, [&](const Culprit& one) { return one.from == line.host; });
  if (same != culprits.end()) {
    same->kind = Culprit::Kind::kHost;
  } else {
    culprits.push_back(
        {.kind = line.out ? Culprit::Kind::kHostOut : Culprit::Kind::kHostIn, .from = line.host});
  }
}

}  // namespace

std::vector<Culprit> Attribute(size_t hosts, const std::vector<HostPair>& tested,
                               const std::vector<HostPair>& bad) {
  std::vector<Culprit> culprits;
  std::vector<HostPair> left = bad;
  std::vector<Line> lines = BadLines(hosts, tested, bad);
  while (!lines.empty()) {
    const auto most =
        std::ranges::max_element(lines, {}, [&](const Line& line) { return line.CountIn(left); });
    // What others explain already, but for one pair, is that pair's.
    if (most->CountIn(left) < kFewestPairs) break;
    AddHost(culprits, *most);
    std::erase_if(left, [line = *most](const HostPair& one) { return line.Has(one); });
    lines.erase(most);
  }
  std::set<HostPair> links(left.begin(), left.end());
  for (const HostPair& one : left) {
    if (!links.contains(one)) continue;
    const bool both = links.contains({one.second, one.first});
    culprits.push_back({.kind = both ? Culprit::Kind::kLinkBoth : Culprit::Kind::kLink,
                        .from = one.first,
                        .to = one.second});
    links.erase(one);
    links.erase({one.second, one.first});
  }
  return culprits;
}

}  // namespace weightcast::peertest
