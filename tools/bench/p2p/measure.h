#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// One thing to measure: transfers of `iovs` equal pieces that lie apart on both sides.
struct P2pCase {
  std::string transport;  ///< "tcp", "shm"
  std::string memory;     ///< As BenchMemory has it.
  std::string op;         ///< "write", "read"; of host memory "send", "ping", "signal", too.
  uint64_t piece_bytes = 0;
  uint64_t iovs = 1;
  [[nodiscard]] uint64_t bytes() const { return piece_bytes * iovs; }
};

/// How all cases are measured.
struct P2pOptions {
  Settings settings;
  double seconds = 0.5;           ///< For each case, about, between rounds too.
  bool both = false;              ///< Both processes of a pair transfer at the same time.
  int64_t pairs = 1;              ///< Pairs of processes, all at the same time.
  bool reuse = false;             ///< The same bytes every time, read by nobody.
  std::vector<uint32_t> devices;  ///< Of parties with device memory, in turn; empty: the first two, or one.
  std::string connect;            ///< "host:port" of the other half of each pair; empty: all on this host.
};

struct P2pResult {
  P2pCase what;
  std::vector<int32_t> devices{};  ///< Of each party in turn; empty: host memory.
  int64_t transfers = 0;
  double p50_us = 0;  ///< From the call to its end, one transfer at a time in each process that transfers.
  double p99_us = 0;
  /// bytes / p50; of several at once the bytes of a round by the time from its first begin to its last
  /// end (between hosts, whose clocks differ: of the host that took longer), median over rounds.
  double gb_per_s = 0;
};

/// Measures cases that share transport and memory between fresh processes on cores of their own (where
/// there are enough). Before each timed round the source writes new bytes, after it the target reads
/// them once and compares; a round is one transfer, or up to 1024 small ones with bytes of their own.
/// Call it while single-threaded: it forks. `on_result`: as each is there.
Status MeasureP2p(const std::vector<P2pCase>& cases, const P2pOptions& options,
                  const std::function<void(const P2pResult&)>& on_result);

}  // namespace weightcast::tools
