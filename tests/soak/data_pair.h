#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "child_process.h"
#include "soak/data_board.h"
#include "soak/network.h"

namespace weightcast::soak {

/// A target and a source, each a process that is started again as soon as it ends. Not thread safe.
class DataPair {
 public:
  /// With a network each runs in a namespace of its own. `settings`: of both.
  DataPair(uint32_t number, bool shared, std::map<std::string, std::string> settings,
           std::unique_ptr<Network> network);
  ~DataPair();  ///< Ends both.
  DataPair(const DataPair&) = delete;
  DataPair& operator=(const DataPair&) = delete;

  [[nodiscard]] DataBoard& board() { return *board_; }
  [[nodiscard]] const Network* network() const { return network_.get(); }
  [[nodiscard]] std::string Describe() const;
  [[nodiscard]] int starts(size_t role) const { return processes_[role].starts; }
  void KeepLog() { keep_log_ = true; }

  void Kill(size_t role);      ///< SIGKILL; it is started again by the next Look.
  void Stop(size_t role);      ///< SIGSTOP ...
  void Continue(size_t role);  ///< ... and SIGCONT.

  /// Starts again what was killed. Who ends otherwise has broken a promise.
  void Look();
  /// Looks until `done`; false after `seconds`, or once a promise is broken.
  bool WaitUntil(const std::function<bool()>& done, double seconds);
  /// Lets both end by themselves; whether they did, well and in time.
  bool End(double seconds);

 private:
  struct Process {
    test::Process child;
    int starts = 0;
    bool killed = false;
  };
  void Start(size_t role);

  const uint32_t number_;
  const bool shared_;
  const std::map<std::string, std::string> settings_;
  const std::unique_ptr<Network> network_;
  std::string folder_;
  bool keep_log_ = false;
  DataBoard* board_;
  std::array<Process, 2> processes_;
};

/// What a process that a DataPair has started does, if the command line says that this is one.
std::optional<int> RunIfStartedByPair(int argc, char** argv);

}  // namespace weightcast::soak
