#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// One thing to measure: transfers of `iovs` equal pieces that lie apart on both sides.
struct P2pCase {
  std::string transport;  ///< "tcp", "shm"
  std::string memory;     ///< "mapped": from Allocate, "any": anonymous pages.
  std::string op;         ///< "write", "read"
  uint64_t piece_bytes = 0;
  uint64_t iovs = 1;
  [[nodiscard]] uint64_t bytes() const { return piece_bytes * iovs; }
};

struct P2pResult {
  P2pCase what;
  int64_t transfers = 0;
  double p50_us = 0;  ///< From the call to its end, one transfer at a time.
  double p99_us = 0;
  double gb_per_s = 0;  ///< bytes / p50.
};

/// Measures cases that share transport and memory between two fresh processes on cores of their own
/// (if there are two), each for about `seconds`, and compares the bytes that came over.
/// Call it while single-threaded: it forks. `on_result`: as each is there.
Status MeasureP2p(const std::vector<P2pCase>& cases, const Settings& settings, double seconds,
                  const std::function<void(const P2pResult&)>& on_result);

}  // namespace weightcast::tools
