#pragma once

#include <memory>
#include <vector>

#include "tools/command.h"

namespace weightcast::tools {

/// Parses the command line, runs the subcommand that it names and returns the exit code: 0 for
/// success, 1 for a failure, 2 for a wrong command line, 128 + signal when a signal ended it.
/// Errors are one line on standard error.
int RunCommandLine(const std::vector<std::unique_ptr<Command>>& commands, int argc, const char* const* argv);

}  // namespace weightcast::tools
