#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::doctor {

struct Probe {
  std::string_view name;
  Duration limit;
  std::function<std::string()> run;  ///< Its text goes to the caller of RunProbes.
};

/// Runs each probe in a child process, all at once, and kills those that take longer than their limit: a
/// driver may block without end, or crash. One that waits for a processor gets up to four times as long. A
/// child that even SIGKILL does not end is left to the system, without any descriptor of ours. Results in the
/// order of the probes; kTimedOut, or kInternal for a crash. Call it while single-threaded.
std::vector<Result<std::string>> RunProbes(const std::vector<Probe>& probes);

}  // namespace weightcast::doctor
