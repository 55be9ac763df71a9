#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peertest/caller.h"
#include "peertest/data_link.h"
#include "peertest/facts.h"
#include "peertest/messages.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::peertest {

/// Measures one transport between this host and the one that serves, with a DataLink on both. One thread's.
class Measurement {
 public:
  struct Options {
    std::string transport = {};
    std::string here = {};  ///< Addresses of the path.
    std::string there = {};
    TestPlan plan;
    Settings settings = {};
    std::function<bool()> interrupted = {};
  };
  Measurement(Options options, Caller& caller);

  /// Everything but WhileLoaded. `ports`: also try them one by one; null: not.
  void Run(Ports* ports);
  /// Runs `work` while both directions are busy with packets of this class, on a new connection.
  /// Returns why they were not, or nothing.
  std::string WhileLoaded(uint8_t traffic_class, const std::function<void()>& work);
  /// Both sides let go of the connection.
  void Close();
  [[nodiscard]] const TransportFacts& facts() const { return facts_; }

 private:
  Status RunAll(Ports* ports);
  /// Of RDMA: latency of the devices alone.
  Status MeasureDevice();
  /// Of RDMA: what ports of this host and of the other have counted until now.
  std::pair<std::vector<PortCount>, std::vector<PortCount>> CountBoth();
  Status Open();
  void TryBoth(Ports& ports);
  Status Meet();
  Status MeetBy(bool peer_connects);
  Status MeasureLatency();
  Result<std::vector<double>> Ping(uint32_t count);
  Status MeasureRates();
  /// Each size that is worthwhile, two runs at least.
  Result<std::vector<Rate>> MeasureSizes(const std::function<Result<Rate>(uint64_t bytes)>& write) const;
  /// What both sides write in `seconds`: ours, then theirs.
  Result<std::pair<Rate, Rate>> WriteBoth(uint64_t bytes, double seconds);
  Result<Rate> WriteBack(uint64_t bytes);
  [[nodiscard]] Duration Patience(double seconds) const;

  const Options options_;
  Caller& caller_;
  TransportFacts facts_;
  std::unique_ptr<DataLink> link_;
  LinkPlace peer_;
  bool peer_connects_ = false;  ///< Only that way is open.
  bool met_ = false;
  int64_t traffic_class_ = kUnknown;  ///< As AskOpen's.
};

/// Whether so many bytes are worth a measurement of `seconds` where `gbit` were reached before.
bool IsWorthwhile(uint64_t bytes, double gbit, double seconds);

/// How many exchanges the next round of a latency measurement has, of those that are left; 0: it is over.
/// Rounds grow: each lost packet takes a queue pair a second, and one round of all would take minutes of
/// them.
uint32_t NextPings(uint32_t left, uint32_t last, double seconds_left);

}  // namespace weightcast::peertest
