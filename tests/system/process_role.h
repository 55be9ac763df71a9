#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "child_process.h"

namespace weightcast::test {

inline constexpr size_t kMaxProcesses = 8;

/// What the processes of one cluster tell the test, in memory that they share.
struct Board {
  struct Process {
    std::atomic<bool> registered{false};  ///< A worker: its tensors are.
    std::atomic<int64_t> version{-1};     ///< Trainer: last committed; inference: served and compared.
    std::atomic<int64_t> violations{0};   ///< Bytes found that are not of the version reported.
    std::atomic<int64_t> comparisons{0};  ///< Whole comparisons by the reader, against the version reported.
    std::atomic<int> errors{0};
    char error[512] = {};  ///< The last error; written before `errors`.
  };
  char controller[128] = {};
  std::atomic<bool> controller_ready{false};
  std::atomic<bool> stop{false};             ///< The workers are to end.
  std::atomic<bool> stop_controller{false};  ///< Set after they have: none of them is to miss it.
  Process process[kMaxProcesses];
};

/// One process to start: this very test program, in another role.
struct Role {
  std::string role;  ///< "controller", "trainer", "inference"
  std::string engine;
  uint32_t rank = 0;
  uint32_t ranks = 1;
  std::map<std::string, std::string> options;  ///< landing, transport, lease, policy, engines
};

/// The processes of a cluster. Kills what is left at the end.
class Cluster {
 public:
  Cluster();
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  [[nodiscard]] Board& board() { return *board_; }
  /// Index of the process, also on the board.
  size_t Start(Role role);
  void Kill(size_t index) { processes_[index].Kill(); }
  /// Exit code, once it has ended; -1 while it runs, 256 + n for signal n.
  int ExitCode(size_t index) { return processes_[index].Code().value_or(-1); }
  /// Waits until `done()` or the deadline (seconds); false then.
  template <typename Done>
  bool WaitUntil(const Done& done, double seconds) {
    return Eventually(done, std::chrono::duration<double>(seconds));
  }
  [[nodiscard]] std::string ErrorOf(size_t index) const;

 private:
  std::string file_;
  Board* board_;
  std::vector<Process> processes_;
};

}  // namespace weightcast::test
