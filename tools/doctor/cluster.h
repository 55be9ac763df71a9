#pragma once

#include <string>

#include "peertest/test.h"
#include "tools/command.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// What the flags say of a test of all pairs.
struct ClusterTest {
  std::string file = {};  ///< Of hosts; empty: those of the controller's workers.
  std::string html = {};  ///< Where the page goes; empty: nowhere.
  double seconds = 0;     ///< Of each measurement.
};

/// Tests every pair of hosts and prints matrix and findings.
Status TestCluster(const ClusterTest& test, const peertest::TestMeans& means, const Context& context);

}  // namespace weightcast::tools
