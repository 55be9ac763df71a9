#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/status.h"

namespace weightcast::tools {

/// Runs another program in this one's terminal and process group, and sees what it prints.
class Program {
 public:
  struct Options {
    std::vector<std::string> words;  ///< One: a line for the shell. Several: a program and its arguments.
    bool output_to_error = false;    ///< Its standard output goes to our standard error.
    /// Called on each piece of what it prints; `stream` is 1 or 2. The piece has been passed on.
    std::function<void(int stream, std::string_view text)> heard;
  };
  /// Until it has ended and all it printed is passed on. A stop signal that only this process got is passed
  /// on. Returns its exit code, 128 + the signal that killed it, 127 where it cannot be run.
  static Result<int> Run(const Options& options);
};

}  // namespace weightcast::tools
