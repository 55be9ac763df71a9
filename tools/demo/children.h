#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// The descriptor under which a child finds its end of the pair of sockets.
inline constexpr int kParentDescriptor = 3;

/// This binary again, as a process of its own that dies with the one that started it.
class Child {
 public:
  struct Options {
    std::string name;                                              ///< "trainer 1"
    std::vector<std::string> arguments;                            ///< Without the program's name.
    std::vector<std::pair<std::string, std::string>> environment;  ///< Added to ours.
    std::filesystem::path log;                                     ///< Its standard output and error.
  };
  static Result<Child> Start(Options options);
  Child(Child&&) = default;
  Child& operator=(Child&&) = default;
  /// Kills what still runs.
  ~Child();

  [[nodiscard]] const std::string& name() const { return options_.name; }
  [[nodiscard]] const std::filesystem::path& log() const { return options_.log; }
  [[nodiscard]] pid_t pid() const { return pid_.get(); }
  /// Datagrams to and from the child.
  [[nodiscard]] int fd() const { return socket_.get(); }
  /// Sends a signal if it still runs.
  void Signal(int signal) const;
  /// True once it has ended, and how: "exit code 1", "was killed by signal 9 (Killed)". Never blocks.
  bool Ended();
  /// Waits for that, at most `seconds`.
  bool WaitEnded(double seconds);
  [[nodiscard]] const std::string& how() const { return how_; }
  [[nodiscard]] bool succeeded() const { return succeeded_; }

 private:
  /// A pid that leaves with whom it was moved to.
  class Pid {
   public:
    explicit Pid(pid_t pid = -1) : pid_(pid) {}
    Pid(Pid&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
    Pid& operator=(Pid&& other) noexcept {
      pid_ = std::exchange(other.pid_, -1);
      return *this;
    }
    [[nodiscard]] pid_t get() const { return pid_; }

   private:
    pid_t pid_;
  };

  explicit Child(Options options) : options_(std::move(options)) {}

  Options options_;
  Pid pid_;
  UniqueFd socket_;
  bool ended_ = false;
  bool succeeded_ = false;
  std::string how_;
};

/// Asks all that still run to end, and kills what has not done so within `grace_seconds`.
void EndChildren(std::vector<Child>& children, double grace_seconds);

}  // namespace weightcast::tools
