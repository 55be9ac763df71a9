#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "child_process.h"
#include "soak/board.h"
#include "soak/machine.h"
#include "soak/network.h"
#include "soak/role.h"

namespace weightcast::soak {

/// The processes of one cluster, each started again as soon as it ends. Not thread safe.
class Cluster {
 public:
  /// With a network each process runs in a namespace of its own.
  Cluster(int number, Setup setup, std::unique_ptr<Network> network);
  ~Cluster();  ///< Ends all.
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  [[nodiscard]] Board& board() { return *board_; }
  [[nodiscard]] const Setup& setup() const { return setup_; }
  [[nodiscard]] const Network* network() const { return network_.get(); }
  [[nodiscard]] std::string Describe() const;
  void KeepLog() { keep_log_ = true; }  ///< What the processes have written stays where Describe says.

  void Kill(size_t index);       ///< SIGKILL; it is started again by the next Look.
  void Retire(size_t index);     ///< Kill, and not to be started again ...
  void Reinstate(size_t index);  ///< ... until now.
  void Stop(size_t index);       ///< SIGSTOP ...
  void Continue(size_t index);   ///< ... and SIGCONT.
  [[nodiscard]] bool stopped(size_t index) const { return processes_[index].stopped; }
  /// How often a process has been started, by whatever end of the one before.
  [[nodiscard]] int starts(size_t index) const { return processes_[index].starts; }

  /// Starts again what has ended, and lets the trainers publish the next number once all have finished this
  /// one.
  void Look();
  /// Lets all processes end by themselves. What of the driver's is left then, or who does not end; empty: all
  /// is well.
  std::string End();
  /// Looks until `done`; false after `seconds`.
  bool WaitUntil(const std::function<bool()>& done, double seconds);

 private:
  struct Process {
    test::Process child;
    int starts = 0;
    bool stopped = false;
    bool retired = false;
  };
  void Start(size_t index);

  const Setup setup_;
  const std::unique_ptr<Network> network_;
  std::unique_ptr<Machine> machine_;  ///< Where weights are on devices.
  std::string file_;
  bool keep_log_ = false;
  Board* board_;
  std::array<Process, kProcesses> processes_;
};

/// What a process that a Cluster has started does, if the command line says that this is one.
std::optional<int> RunIfStartedByCluster(int argc, char** argv);

}  // namespace weightcast::soak
