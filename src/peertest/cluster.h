#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "peertest/facts.h"
#include "peertest/messages.h"
#include "peertest/rounds.h"
#include "peertest/test.h"

namespace weightcast::peertest {

struct ClusterHost {
  std::string target = {};  ///< As it was asked for.
  Failure failure = {};     ///< It takes part in no pair.
  HostReport report = {};
};

/// What `tester` measured towards the second host of a pair.
struct ClusterPair {
  HostPair hosts = {};  ///< Places in the list of hosts; the first has measured.
  PeerFacts facts = {};
};

struct ClusterFacts {
  std::vector<ClusterHost> hosts = {};
  std::vector<ClusterPair> pairs = {};
  size_t rounds = 0;
  double seconds = 0;  ///< That it took.
};

struct ClusterPlan {
  std::vector<std::string> targets;
  TestPlan test;
  /// Pairs that are over, and all.
  std::function<void(size_t done, size_t all)> on_progress = {};
};

/// Has every pair of the hosts tested, in rounds in which no host has two tests: one host of each pair is
/// told to test the other. Starts threads, at most 64. Bounded as RunTest is, for each round.
ClusterFacts RunCluster(const ClusterPlan& plan, const TestMeans& means);

}  // namespace weightcast::peertest
