#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weightcast/status.h"

namespace weightcast::tools {

/// What a machine allows, measured with nothing of ours in between.
struct FloorCase {
  std::string what;  ///< One of FloorNames.
  uint64_t bytes = 0;
};

struct FloorResult {
  FloorCase what;
  double p50_us = 0;  ///< Of one copy, or one way of a ping-pong.
  double p99_us = 0;
  double gb_per_s = 0;  ///< bytes / p50.
};

/// In all of them the source is written again before each copy and the target read after it, untimed, so that
/// large copies walk memory and small ones find their source in the caches:
/// "memcpy": within one process.
/// "stream": the same with non-temporal stores.
/// "cross", "cross-huge": process_vm_writev into another process, from and to ordinary or huge pages.
/// "socket": over a TCP connection of this machine into another process, until its answer of one byte; both
/// sides spin.
/// "socket-ping": one way of a ping-pong over such a connection; both sides spin.
/// "flag-ping": one way of a ping-pong through two words of shared memory; both sides spin.
const std::vector<std::string>& FloorNames();

/// Measures between processes on cores of their own (where there are two), each for about `seconds`. Call
/// it while single-threaded: it forks.
Result<FloorResult> MeasureFloor(const FloorCase& what, double seconds);

}  // namespace weightcast::tools
