#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "peertest/cluster.h"

namespace weightcast::peertest {

/// What one host writes to another. nullopt in a place: not measured.
struct Matrix {
  std::vector<std::string> names;                           ///< Of the hosts; unlike each other.
  std::vector<std::vector<std::optional<double>>> gbit;     ///< [from][to]
  std::vector<std::vector<std::optional<double>>> latency;  ///< Seconds, one way, p50.
  std::vector<std::vector<bool>> slow;                      ///< By its rate.
  std::vector<std::vector<bool>> late;                      ///< By its latency.
  double usual = 0;                                         ///< Gbit/s, of a healthy pair.
  double usual_latency = 0;                                 ///< Seconds.
};
/// Of the first transport that was measured in most pairs: "verbs" before "tcp".
Matrix MatrixOf(const ClusterFacts& facts);

/// Pairs that are slow or late, or whose transport failed: worth a second measurement (ClusterPlan). A pure
/// function.
std::vector<HostPair> DoubtfulPairs(const ClusterFacts& facts);

/// A pure function. Names hosts where their pairs agree, and links where they do not.
std::vector<doctor::Finding> CheckCluster(const ClusterFacts& facts);

}  // namespace weightcast::peertest
