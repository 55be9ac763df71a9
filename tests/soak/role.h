#pragma once

#include <map>
#include <string>

#include "soak/board.h"

namespace weightcast::soak {

/// How a cluster is set up; handed to each process on its command line.
struct Setup {
  std::string controller;  ///< "host:port", always the same.
  std::map<std::string, std::string> settings;
  bool shadow = false;   ///< Landing.
  bool sharded = false;  ///< Trainers hold a half each; otherwise everything.
};

/// Runs as process `index` until board.stop; what it returns is its exit code. A controller that ends and a
/// worker that finds no way on returns 3: whoever started it starts it again.
int RunRole(Board& board, size_t index, const Setup& setup);

}  // namespace weightcast::soak
