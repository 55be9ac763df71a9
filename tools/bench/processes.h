#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/channel.h"
#include "tools/command.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// Runs `work` in a fork of this process that dies with it. Call it while single-threaded. Errors:
/// kExhausted.
Result<pid_t> ForkWorker(const std::function<Status()>& work);

/// In such a fork: its end of the stream between it and the process that measures.
class BenchParent {
 public:
  explicit BenchParent(const BenchChannel& channel) : channel_(channel) {}
  [[nodiscard]] Status Report(std::string_view bytes) const { return channel_.Answer(Status::Ok(), bytes); }
  /// Waits for what the parent tells next.
  [[nodiscard]] Result<std::string> Next() const;

 private:
  const BenchChannel& channel_;
};

/// The flags of a command line, with generous time limits where the user has not chosen any: for many
/// processes on few cores.
std::map<std::string, std::string> PatientSettings(const Context& context);

/// Forks of this process that take part in one measurement and die with this object.
class BenchProcesses {
 public:
  BenchProcesses() = default;
  ~BenchProcesses() { Kill(); }
  BenchProcesses(const BenchProcesses&) = delete;
  BenchProcesses& operator=(const BenchProcesses&) = delete;

  /// Starts one more. Call it while single-threaded.
  Status Start(const std::function<Status(const BenchParent&)>& work);
  Status Tell(size_t process, std::string_view bytes) const;
  Status TellAll(std::string_view bytes) const;
  /// The next report of each, in the order of their start. Errors: the first that goes wrong in one of
  /// them; kTimedOut; kCancelled when this process has been asked to end.
  [[nodiscard]] Result<std::vector<std::string>> Gather(TimePoint deadline) const;
  void Kill();

 private:
  struct Process {
    pid_t pid = -1;
    BenchChannel channel;
  };
  std::vector<Process> processes_;
};

}  // namespace weightcast::tools
